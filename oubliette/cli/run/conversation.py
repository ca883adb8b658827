"""One session at a terminal: its events as they come, questions for permission, and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

import oubliette
from oubliette.api.events.decoding import encode_event
from oubliette.api.results import ResultType, ask_for_result
from oubliette.cli.client.following import (
    AGAIN_SECONDS,
    INTERRUPTS,
    LEAVES,
    ExitCode,
    exit_code,
)
from oubliette.cli.client.tools import HomeServer
from oubliette.cli.terminal.choices import SCRIPTED, SCRIPTED_DOES
from oubliette.cli.terminal.output import clean, note, print_json, ring
from oubliette.cli.terminal.screen import Screen, to_person
from oubliette.records import title_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

    from oubliette import Event, Session, SessionInfo, Turn, TurnResult
    from oubliette.api.callers.caller_loops import OnPermission
    from oubliette.errors import OublietteError

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


class RunTask(NamedTuple):
    """Task for an agent, and the form in which the user sees its work."""

    project_id: str
    prompt: str
    options: dict[str, Any]
    """`agent`, `model`, `autonomy`; None: it was not given."""
    session_id: str | None = None
    """The session to go on with; None: a new one, in a workspace of its own."""
    tools: Sequence[Callable[..., Any]] = ()
    returns: ResultType[Any] | None = None
    max_cost_usd: float | None = None
    events: bool = False
    """Whether events are printed as JSON lines, and no transcript."""
    quiet: bool = False
    """Whether nothing but questions is shown."""
    notify: bool = False
    """Whether the terminal rings when there is a question."""

    @property
    def shows(self) -> bool:
        """Whether there is a transcript."""
        return not (self.events or self.quiet)


class Outcome:
    """State of a session when the terminal is done with it.

    Args:
        session: When it had begun.
    """

    def __init__(self, session: SessionInfo) -> None:
        self.session_id = session.session_id
        self.session = session
        """The session, as it was last."""
        self.status = "running"
        self.final_text: str | None = None
        """The agent's last message; of a failed turn, the reason."""
        self.only_repeated = False
        """Whether the scripted agent, which was not asked for, has only repeated the task."""
        self.limit: str | None = None
        """Name of the limit that was reached in the last turn."""
        self.result: Any = None
        """The value that the schema describes."""
        self.problem: OublietteError | None = None
        """The reason for which there is none, or for which the tools were not called."""
        self.left = False
        """Whether it was left running: by the user, or as it asks what cannot be answered here."""
        self.asks = False
        """Whether it was left for such a question."""
        self.interrupted = False
        """Whether the user had its turn interrupted."""

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        if self.asks:
            return ExitCode.answer_needed
        if self.left or self.interrupted:
            return ExitCode.interrupted
        code = exit_code(self.status, self.limit)
        if self.only_repeated:
            return ExitCode.failed
        return self.problem.exit_code if self.problem and code is ExitCode.done else code

    @property
    def fields(self) -> dict[str, Any]:
        """The outcome, for programs."""
        session = self.session
        return {
            "session_id": session.session_id,
            "project_id": session.project_id,
            "workspace_id": session.workspace_id,
            "agent": session.agent,
            "model": session.model,
            "autonomy": session.autonomy,
            "status": self.status,
            "final_text": self.final_text,
            "usage": msgspec.to_builtins(session.usage),
        }


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
            ob, task, _Terminal(screen, notify=task.notify).decide if asks else None
        )
        outcome = Outcome(await session.get())
        _introduce(outcome.session)
        by_default = outcome.session.agent == SCRIPTED and task.options.get("agent") is None
        if by_default:
            note(f"No agent with a model is configured; --agent takes one. {SCRIPTED_DOES}")
        work = _Work(ob, task, session, outcome, screen, after=after, asks=asks)
        printing = asyncio.create_task(work.to_the_end(), name="events of the run")
        drawn = screen if task.shows else nullcontext()
        with drawn, _CtrlC(session, outcome, printing, work.going):
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


class _CtrlC:
    """Lets Ctrl-C end the printing, and another one soon after it interrupt the turn instead.

    Args:
        session: The session.
        outcome: Gets what the user has chosen.
        printing: Prints the events.
        going: Whether it may print.
    """

    def __init__(
        self,
        session: Session,
        outcome: Outcome,
        printing: asyncio.Task[None],
        going: asyncio.Event,
    ) -> None:
        self._session = session
        self._outcome = outcome
        self._printing = printing
        self._going = going
        self._loop = asyncio.get_running_loop()
        self._leaving: asyncio.TimerHandle | None = None
        self._interrupt: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._loop.add_signal_handler(signal.SIGINT, self._pressed)

    def __exit__(self, *_: object) -> None:
        self._loop.remove_signal_handler(signal.SIGINT)
        if self._leaving is not None:
            self._leaving.cancel()
        if self._interrupt is not None:
            self._interrupt.cancel()

    def _pressed(self) -> None:
        if self._leaving is None:
            note(LEAVES)
            self._going.clear()
            self._leaving = self._loop.call_later(AGAIN_SECONDS, self._leave)
        elif self._interrupt is None:
            note(INTERRUPTS)
            self._leaving.cancel()
            self._outcome.interrupted = True
            self._going.set()
            self._interrupt = asyncio.create_task(
                self._session.interrupt(), name="interrupt of the run"
            )
            self._interrupt.add_done_callback(_told)
        else:
            self._leave()

    def _leave(self) -> None:
        self._outcome.left = True
        self._printing.cancel()


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        note(f"The turn was not interrupted: {error}")


class _Terminal:
    """Asks the person at the terminal, one question at a time.

    Args:
        screen: Where events are shown; it waits for the answer.
        notify: Whether it rings.
    """

    def __init__(self, screen: Screen, *, notify: bool) -> None:
        self._screen = screen
        self._notify = notify
        self._turn = asyncio.Lock()

    async def decide(self, request: oubliette.PermissionRequest) -> bool:
        """Whether the agent may do what it asks for."""
        async with self._turn:
            if self._notify:
                ring(request.text or "An agent asks")
            with self._screen.paused():
                self._screen.show(request)
                sys.stderr.write("Allow it? [y/N] ")
                sys.stderr.flush()
                return (await _line()).strip().casefold() in {"y", "yes"}


async def _line() -> str:
    """The next line of standard input, without a thread that would outlive the session."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return sys.stdin.readline()
