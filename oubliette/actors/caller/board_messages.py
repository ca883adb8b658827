"""Messages of a CallerActor to itself about the board of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from oubliette.actors.caller_board import SharedCaller
from oubliette.kit import Message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oubliette.clock import Clock
    from oubliette.kit import ActorTimer, PipedTask

T = TypeVar("T")


class BoardAnswered(Message):
    """From the CallerActor to itself: state of the caller on the board."""

    project_id: str | None
    """Project that the keys of this place are bound to; None: to none."""
    row: SharedCaller | None
    opened: bool
    """Whether it was asked to open a provider."""


class BoardFailed(Message):
    """From the CallerActor to itself: the board did not answer."""

    project_id: str | None
    reason: str


class BoardDue(Message):
    """From the CallerActor to itself: time to compare with the board again."""

    project_id: str | None


class BoardPlaces(Message):
    """From the CallerActor to itself: the projects for whose bound keys the board has places."""

    projects: tuple[str, ...] | None
    """None: the board did not answer."""


class BoardPort(Protocol):
    """A CallerActor, as its SharedRow uses it."""

    name: str
    clock: Clock

    def after(self, delay: float, message: Message) -> ActorTimer:
        """Send `message` to the actor in `delay` seconds."""
        ...

    def pipe_to_self(
        self,
        awaitable: Awaitable[T],
        ok: Callable[[T], Message],
        err: Callable[[BaseException], Message],
    ) -> PipedTask:
        """Send the actor a message with the outcome of `awaitable`."""
        ...
