"""One session at a terminal: its events as they come, questions for permission, and Ctrl-C."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import oubliette
from oubliette.api.events.decoding import encode_event
from oubliette.api.results import ask_for_result
from oubliette.cli.client.tools import HomeServer
from oubliette.cli.run.keyboard import CtrlC, Questions
from oubliette.cli.run.run_task import Outcome
from oubliette.cli.terminal.choices import SCRIPTED, SCRIPTED_DOES
from oubliette.cli.terminal.output import clean, note, print_json
from oubliette.cli.terminal.screen import Screen, to_person
from oubliette.records import title_of

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from oubliette import Event, Session, SessionInfo, Turn, TurnResult
    from oubliette.api.callers.caller_loops import OnPermission
    from oubliette.cli.run.run_task import RunTask

_AUTONOMY: Final = {
    "off": "asks nothing, the container is the boundary",
    "ask": "no action without a permission",
    None: "it depends on the agent what it asks for",
}
_SOME: Final = "some actions need a permission"
KEY_SECONDS: Final = 7 * 24 * 3600.0
"""Time after which the key of a command expires, if that is killed before it revokes it."""


@contextmanager
def key_of_operator(home: Path, scope: str, name: str) -> Generator[str]:
    """Yield a key of the operator with a scope, which exists as long as the block."""
    server = HomeServer(home)
    key = server.call(
        "token_create",
        {
            "name": name,
            "scope": scope,
            "principal": "operator",
            "expires_in_seconds": KEY_SECONDS,
        },
    )
    try:
        yield key["token"]
    finally:
        server.call("token_revoke", {"token_id": key["token_id"]})


async def converse(url: str, key: str, task: RunTask) -> Outcome:
    """Give a task to an agent, and print what happens until it is done.

    Ctrl-C leaves the session running, another one soon after it interrupts the turn. A question
    leaves it too where it cannot be answered.

    Args:
        url: Of the server.
        key: Of the principal whose session it is.
        task: The task.
    """
    screen = Screen(to_person())
    asks = sys.stdin.isatty() and task.options.get("autonomy") != "off"
    async with oubliette.connect(url, key, on_exit="keep") as ob:
        session, after = await _begin(
            ob, task, Questions(screen, notify=task.notify).decide if asks else None
        )
        outcome = Outcome(await session.get())
        _introduce(outcome.session)
        by_default = outcome.session.agent == SCRIPTED and task.options.get("agent") is None
        if by_default:
            note(f"No agent with a model is configured; --agent takes one. {SCRIPTED_DOES}")
        work = _Work(ob, task, session, outcome, screen, after=after, asks=asks)
        printing = asyncio.create_task(work.to_the_end(), name="events of the run")
        drawn = screen if task.shows else nullcontext()
        with drawn, CtrlC(session, outcome, printing, work.going):
            await asyncio.wait([printing])
        if not printing.cancelled():
            printing.result()
        if not outcome.left:
            outcome.session = await session.get()
        outcome.only_repeated = by_default and work.messages == _lines(task.prompt)
        return outcome


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


async def _begin(
    ob: oubliette.Oubliette, task: RunTask, decide: OnPermission | None
) -> tuple[Session, int]:
    """Send the prompt; return the session, and the index of its last event before."""
    message = task.prompt if task.returns is None else task.returns.prompt(task.prompt)
    given: dict[str, Any] = {
        **{name: value for name, value in task.options.items() if value is not None},
        "tools": task.tools or None,
        "on_permission": decide,
    }
    if task.session_id is not None:
        after: int = (await ob.call("session_get", session_id=task.session_id))["last_index"]
        session = await ob.session(task.session_id)
        await session.send(message, **given)
        return session, after
    project = await ob.project(task.project_id)
    limited = project
    if task.max_cost_usd is not None:
        limited = project.tree(max_cost_usd=task.max_cost_usd)
    # The message has the schema before the task.
    title = "" if task.returns is None else " ".join(clean(title_of(task.prompt)).split())
    return await limited.spawn(message, new_workspace=True, title=title or None, **given), -1


def _introduce(session: SessionInfo) -> None:
    autonomy = session.autonomy
    note(
        f"{session.session_id} ({session.agent}) works in workspace {session.workspace_id},"
        f" autonomy {autonomy or 'not given'}: {_AUTONOMY.get(autonomy, _SOME)}."
    )


class _AnswerNeeded(Exception):
    """The agent asks, and an answer cannot be given here."""


class _Work:
    """The work of an agent on the task, from its first event to its answer.

    Args:
        ob: The server.
        task: The task.
        session: Has got the prompt.
        outcome: Gets what becomes of it.
        screen: For its events.
        after: Index of its last event before the prompt.
        asks: Whether questions reach the user.
    """

    def __init__(
        self,
        ob: oubliette.Oubliette,
        task: RunTask,
        session: Session,
        outcome: Outcome,
        screen: Screen,
        *,
        after: int,
        asks: bool,
    ) -> None:
        self._ob = ob
        self._task = task
        self._session = session
        self._first: Turn | None = session.turn
        self._outcome = outcome
        self._screen = screen
        self._after = after
        self._asks = asks
        self.messages: list[str] = []
        """The agent's messages of the last turn."""
        self.going = asyncio.Event()
        """Whether it may print."""
        self.going.set()

    async def to_the_end(self) -> None:
        """Print events until the turn is over; with a schema until an answer is valid, too."""
        task, outcome = self._task, self._outcome
        try:
            if task.returns is not None:
                outcome.result = await ask_for_result(task.returns, task.prompt, self._answer)
            elif task.tools:
                await self._answer(task.prompt)
            else:
                await self._print_events()
        except (oubliette.ResultInvalid, oubliette.AgentNeverSawTools) as error:
            outcome.problem = error
        except (oubliette.SessionFailed, oubliette.TurnInterrupted):
            pass  # the outcome has its status
        except _AnswerNeeded:
            outcome.left = outcome.asks = True

    async def _answer(self, message: str) -> TurnResult:
        """Return the answer to a message. The first one was sent when the session began."""
        turn, self._first = self._first, None
        turn = turn or await self._session.send(message)
        await self._print_events()
        return await turn

    async def _print_events(self) -> None:
        events = self._session.events(after=self._after)
        async for event in events:
            await self.going.wait()
            await self._take(event)
        self._after = events.cursor

    async def _take(self, event: Event) -> None:
        outcome, task = self._outcome, self._task
        match event:
            case oubliette.Completion(status=status, final_text=text):
                outcome.status, outcome.final_text = status, text
            case oubliette.Status(status="running"):
                outcome.limit = None
                self.messages.clear()
            case oubliette.Message(text=text):
                self.messages.append(text.strip())
            case oubliette.ErrorEvent(kind="limit", limit=limit):
                outcome.limit = limit
            case oubliette.SystemEvent(kind="tools_not_listed") if task.tools:
                await self._session.interrupt()
            case _:
                pass
        question = isinstance(event, oubliette.PermissionRequest)
        if task.events:
            print_json(encode_event(event))
        elif task.shows and not (self._asks and question):  # the question has it
            self._screen.show(event)
        if question and not sys.stdin.isatty() and await self._is_open(event):
            raise _AnswerNeeded

    async def _is_open(self, asked: oubliette.PermissionRequest) -> bool:
        """Whether a question, which may be an old one, has no answer yet."""
        waiting = await self._ob.permissions(self._session.project_id)
        return asked.request_id in {each.request_id for each in waiting}
