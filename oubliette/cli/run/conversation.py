"""One session at a terminal: its events as they come, questions for permission, and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

import oubliette
from oubliette.cli.client.following import AGAIN_SECONDS, INTERRUPTS, LEAVES
from oubliette.cli.client.tools import HomeServer
from oubliette.cli.terminal.output import note
from oubliette.cli.terminal.screen import Screen, to_person

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from oubliette import Session, SessionInfo

SCRIPTED: Final = "scripted"
"""Agent that works without a model, and understands no task."""
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
    screen = Screen(to_person())
    asks = sys.stdin.isatty() and options.get("autonomy") in {None, "ask", "low", "medium", "high"}
    async with oubliette.connect(url, key, on_exit="keep") as ob:
        project = await ob.project(project_id)
        session = await project.spawn(
            prompt,
            new_workspace=True,
            on_permission=_Terminal(screen).decide if asks else None,
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
            _show_events(session, outcome, going, screen, asks=asks),
            name="events of the run",
        )
        with screen, _CtrlC(session, outcome, printing, going):
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


async def _show_events(
    session: Session, outcome: Outcome, going: asyncio.Event, screen: Screen, *, asks: bool
) -> None:
    async for event in session.events():
        await going.wait()
        if isinstance(event, oubliette.Completion):
            outcome.status, outcome.final_text = event.status, event.final_text
        if not (asks and isinstance(event, oubliette.PermissionRequest)):  # the question has it
            screen.show(event)


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
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._turn = asyncio.Lock()

    async def decide(self, request: oubliette.PermissionRequest) -> bool:
        """Whether the agent may do what it asks for."""
        async with self._turn:
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
