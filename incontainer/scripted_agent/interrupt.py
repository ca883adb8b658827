"""Shared condition of the scripted agent's threads, and the interrupt that ends waits."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Interrupted(Exception):
    """The turn must end now."""


class InterruptSignal:
    """Condition under which threads change their state and notify; the turn waits for it here."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.interrupted = False

    def wait(self, happened: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until `happened()`, at most `seconds`; return whether it has.

        Raises:
            Interrupted: The turn was interrupted before.

        """
        with self.condition:
            self.condition.wait_for(lambda: self.interrupted or happened(), _bounded(seconds))
            if self.interrupted:
                raise Interrupted
            return happened()

    def wait_regardless(self, happened: Callable[[], bool], seconds: float) -> bool:
        """Wait as `wait` does, but do not end at an interrupt."""
        with self.condition:
            return self.condition.wait_for(happened, _bounded(seconds))

    def check(self) -> None:
        """Raise `Interrupted` if the turn was interrupted."""
        if self.interrupted:
            raise Interrupted

    def notify(self) -> None:
        """Wake the waiting turn: something changed."""
        with self.condition:
            self.condition.notify_all()

    def interrupt(self) -> None:
        """End the turn's waits, all until `reset`."""
        with self.condition:
            self.interrupted = True
            self.condition.notify_all()

    def reset(self) -> None:
        with self.condition:
            self.interrupted = False


def _bounded(seconds: float | None) -> float | None:
    return None if seconds is None else min(seconds, threading.TIMEOUT_MAX)
