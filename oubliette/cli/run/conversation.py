"""One session at a terminal: its events as they come, questions for permission, and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

import oubliette
from oubliette.cli.terminal.output import clean, is_json, note, print_json

if TYPE_CHECKING:
    from collections.abc import Generator

    from oubliette import Event, Session

SCRIPTED: Final = "scripted"
"""Agent that works without a model, and understands no task."""
SHOWN: Final = 160
"""Characters of a call or a result on one line."""
_DIM: Final = "\x1b[2m"
_BOLD: Final = "\x1b[1m"
_PLAIN: Final = "\x1b[0m"


class Outcome:
    """State of a session when the terminal is done with it."""

    def __init__(self, session: Session) -> None:
        self.session_id = session.id
        self.workspace_id = session.workspace_id
        self.status = "running"
        self.left = False
        """Whether the user left it running."""

    @property
    def fields(self) -> dict[str, str]:
        """The outcome, for programs."""
        return {
            "session_id": self.session_id,
            "workspace_id": self.workspace_id,
            "status": self.status,
        }


async def converse(url: str, key: str, project_id: str, prompt: str, **options: Any) -> Outcome:
    """Run a session in a workspace of its own, and print its events until its turn ends.

    Ctrl-C interrupts the turn, a second one leaves the session as it is.

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
        agent = (await session.get()).agent
        note(f"{session.id} ({agent}) works in workspace {session.workspace_id}.")
        if agent == SCRIPTED and "agent" not in options:
            note(
                "No agent with a model is configured: the scripted one repeats the prompt. --agent"
                " takes another; oubliette doctor shows which there are, and what they need."
            )
        outcome = Outcome(session)
        printing = asyncio.create_task(_print_events(session, outcome), name="events of the run")
        with _interrupts(session, outcome, printing):
            await asyncio.wait([printing])
        if not printing.cancelled():
            printing.result()
        return outcome


async def _print_events(session: Session, outcome: Outcome) -> None:
    async for event in session.events():
        if isinstance(event, oubliette.Completion):
            outcome.status = event.status
        if is_json():
            print_json(msgspec.to_builtins(event))
            continue
        text = described(event, colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
        if text:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


@contextlib.contextmanager
def _interrupts(
    session: Session, outcome: Outcome, printing: asyncio.Task[None]
) -> Generator[None]:
    """Let Ctrl-C interrupt the turn, and a second one end the printing."""
    loop = asyncio.get_running_loop()
    begun: list[asyncio.Task[None]] = []

    def interrupted() -> None:
        if not begun:
            note("Interrupting the turn. Ctrl-C again leaves the session running.")
            begun.append(asyncio.create_task(session.interrupt(), name="interrupt of the run"))
            begun[0].add_done_callback(_told)
        else:
            outcome.left = True
            printing.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        for task in begun:
            task.cancel()


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        note(f"The turn was not interrupted: {error}")


class _Terminal:
    """Asks the person at the terminal, one question at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def decide(self, request: oubliette.PermissionRequest) -> bool:
        """Return whether the agent may do what it asks for."""
        async with self._turn:
            what = request.text or "do this"
            if request.tool_call is not None:
                what += f"\n  {_short(request.tool_call)}"
            sys.stderr.write(f"The agent asks: {clean(what)}\nAllow it? [y/N] ")
            sys.stderr.flush()
            return (await _line()).strip().casefold() in {"y", "yes"}


async def _line() -> str:
    """Return the next line of standard input, without a thread that would outlive the session."""
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
