"""Outages of the database: requests that wait for its end, as all that a session writes does.

An actor that gives up instead fails, and what it stands for fails with it: a session, its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from oubliette.actors.store.actor import OUTAGE_SECONDS, GetRunningSince
from oubliette.errors import StorageUnavailable
from oubliette.kit import ActorDead
from oubliette.kit.retry import ask_with_retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oubliette.kit import Actor, Message, Ref

AWAY_SECONDS: Final = 600.0
"""Time for which is waited."""

T = TypeVar("T")


async def once_back(ask: Callable[[], Awaitable[T]]) -> T:
    """Return what `ask` awaits, which is repeated until the database answers.

    Args:
        ask: reads, or writes what may be written twice.

    Raises:
        StorageUnavailable: the database was away for `AWAY_SECONDS`.
        ActorDead: the store was.
    """
    return await ask_with_retry(ask, (ActorDead, StorageUnavailable), seconds=AWAY_SECONDS)


def tell_running_since(actor: Actor, store: Ref, message: Callable[[float], Message]) -> None:
    """Send an actor a message with the end of the latest outage, once there is none.

    A deadline that passes during an outage is not the fault of those who could not answer: they get
    their time after it.

    Args:
        actor: It gets the message.
        store: The actor in front of the database.
        message: Makes the message from the wall second of that end; 0: it is unknown.
    """
    actor.pipe_to_self(
        store.ask(GetRunningSince(), timeout=OUTAGE_SECONDS), message, lambda _: message(0.0)
    )
