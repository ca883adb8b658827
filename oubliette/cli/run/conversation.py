"""One session at a terminal: its events as they come, questions for permission, and Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

import oubliette
from oubliette.cli.terminal.output import clean, is_json, note

if TYPE_CHECKING:
    from typing import IO

    from oubliette import Event, Session, SessionInfo

SCRIPTED: Final = "scripted"
"""Agent that works without a model, and understands no task."""
SHOWN: Final = 160
"""Characters of a call or a result on one line."""
AGAIN_SECONDS: Final = 2.0
"""Time after a Ctrl-C within which another one interrupts the turn."""
_AUTONOMY: Final = {
    "off": "asks nothing, the container is the boundary",
    "ask": "no action without a permission",
    None: "it depends on the agent what it asks for",
}
_SOME: Final = "some actions need a permission"
_DIM: Final = "\x1b[2m"
_BOLD: Final = "\x1b[1m"
_PLAIN: Final = "\x1b[0m"


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
        self.left = False
        """Whether the user left it running."""
        self.interrupted = False
        """Whether the user had its turn interrupted."""

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


async def converse(url: str, key: str, project_id: str, prompt: str, **options: Any) -> Outcome:
    """Run a session in a workspace of its own, and print its events until its turn ends.

    Ctrl-C leaves the session running, another one soon after it interrupts the turn.

    Args:
        url: Of the server.
        key: Of the principal whose session it is.
        project_id: Id of the project.
        prompt: For the agent.
        options: `agent`, `model`, `autonomy`.
    """
    asks = sys.stdin.isatty() and options.get("autonomy") in {None, "ask", "low", "medium", "high"}
    async with oubliette.connect(url, key, on_exit="keep") as ob:
        project = await ob.project(project_id)
        session = await project.spawn(
            prompt,
            new_workspace=True,
            on_permission=_Terminal().decide if asks else None,
            **options,
        )
        outcome = Outcome(await session.get())
        _introduce(outcome.session)
        if outcome.session.agent == SCRIPTED and "agent" not in options:
            note(
                "No agent with a model is configured: the scripted one repeats the prompt. --agent"
                " takes another; oubliette doctor shows which there are, and what they need."
            )
        going = asyncio.Event()
        going.set()
        printing = asyncio.create_task(
            _print_events(session, outcome, going), name="events of the run"
        )
        with _CtrlC(session, outcome, printing, going):
            await asyncio.wait([printing])
        if not printing.cancelled():
            printing.result()
        if not outcome.left:
            outcome.session = await session.get()
        return outcome


def _introduce(session: SessionInfo) -> None:
    autonomy = session.autonomy
    note(
        f"{session.session_id} ({session.agent}) works in workspace {session.workspace_id},"
        f" autonomy {autonomy or 'not given'}: {_AUTONOMY.get(autonomy, _SOME)}."
    )


def to_person() -> IO[str]:
    """Return where a person reads: stderr if stdout, which a program has, is for the answer."""
    return sys.stdout if sys.stdout.isatty() and not is_json() else sys.stderr


async def _print_events(session: Session, outcome: Outcome, going: asyncio.Event) -> None:
    async for event in session.events():
        await going.wait()
        if isinstance(event, oubliette.Completion):
            outcome.status, outcome.final_text = event.status, event.final_text
        screen = to_person()
        text = described(event, colour=screen.isatty() and not os.environ.get("NO_COLOR"))
        if text:
            screen.write(text + "\n")
            screen.flush()


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
            note(f"Detached; it runs on. Ctrl-C within {AGAIN_SECONDS:g} s interrupts the turn.")
            self._going.clear()
            self._leaving = self._loop.call_later(AGAIN_SECONDS, self._leave)
        elif self._interrupt is None:
            note("Interrupting the turn. Ctrl-C again leaves the session as it is.")
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
    """Asks the person at the terminal, one question at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def decide(self, request: oubliette.PermissionRequest) -> bool:
        """Whether the agent may do what it asks for."""
        async with self._turn:
            what = request.text or "do this"
            if request.tool_call is not None:
                what += f"\n  {_short(request.tool_call)}"
            sys.stderr.write(f"The agent asks: {clean(what)}\nAllow it? [y/N] ")
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


def described(event: Event, *, colour: bool) -> str:
    """Return an event for a terminal; empty for one that is not shown. Agents choose its text."""
    match event:
        case oubliette.Message(text=text):
            return clean(text)
        case oubliette.ToolCall(tool=tool, arguments=arguments):
            return _styled(f"→ {clean(tool)} {_short(arguments)}", _BOLD, colour=colour)
        case oubliette.ToolResult(result=result, is_error=is_error):
            mark = "✗" if is_error else "←"
            return _styled(f"{mark} {_short(result)}", _DIM, colour=colour)
        case oubliette.ErrorEvent(message=message):
            return f"error: {clean(message)}"
        case _:
            return ""


def _styled(text: str, style: str, *, colour: bool) -> str:
    return f"{style}{text}{_PLAIN}" if colour else text


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = clean(" ".join(text.split()))
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
