"""The person at the terminal of a run: Ctrl-C, and answers to questions."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

from oubliette.cli.client.following import AGAIN_SECONDS, INTERRUPTS, LEAVES
from oubliette.cli.terminal.output import note, ring

if TYPE_CHECKING:
    from oubliette import PermissionRequest, Session
    from oubliette.cli.run.run_task import Outcome
    from oubliette.cli.terminal.screen import Screen


class CtrlC:
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


class Questions:
    """Asks the person at the terminal, one question at a time.

    Args:
        screen: Where events are shown; it waits for the answer.
        notify: Whether it rings.
    """

    def __init__(self, screen: Screen, *, notify: bool) -> None:
        self._screen = screen
        self._notify = notify
        self._turn = asyncio.Lock()

    async def decide(self, request: PermissionRequest) -> bool:
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
