"""Subscription, a handle on an open subscription, and `subscribe`, which opens one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from oubliette.actors.messages import CloseSubscription, OpenSubscription
from oubliette.actors.subscriptions.supervisor import SUBSCRIPTIONS
from oubliette.kit import ActorDead, Ref
from oubliette.kit.retry import ask_with_retry

if TYPE_CHECKING:
    from oubliette.kit import System

START_SECONDS: Final = 1.0  # for a supervisor that was just spawned to start the subscriber


class Subscription:
    """An open subscription. It ends with its subscriber, with the System, or by `end`."""

    def __init__(self, system: System, name: str, after: int) -> None:
        self._system = system
        self.name = name
        """Its name, given or generated."""
        self.after = after
        """Cursor after which it began: an index of the session, else a seq."""

    def __repr__(self) -> str:
        return f"<Subscription {self.name} after {self.after}>"

    async def end(self, *, forget: bool = False) -> bool:
        """End the subscription, and with `forget` delete its stored cursor.

        A batch that the subscriber has not acknowledged yet may still be in its mailbox.

        Returns:
            Whether it was open.
        """
        ref = self._system.ref(SUBSCRIPTIONS)
        message = CloseSubscription(name=self.name, forget=forget)
        return await ask_with_retry(lambda: ref.ask(message))


async def subscribe(
    system: System,
    subscriber: Ref | str,
    *,
    session_id: str | None = None,
    project_id: str | None = None,
    after: int | None = None,
    name: str | None = None,
    restart_seconds: float = 30.0,
) -> Subscription:
    """Send an actor the events of a session, of a project, or of all sessions.

    Args:
        system: the System of the server.
        subscriber: an actor of the System that is alive, or its name.
        session_id: the session.
        project_id: the project; without it and `session_id` all sessions.
        after: cursor: the index of an event of the session, else a seq. -1: from the first event
            that is kept. None: from now on.
        name: stores the cursor under this name; opened again, also by another process on the same
            home, the subscription continues there.
        restart_seconds: seconds that a subscriber that ended has to come back under its name.

    Raises:
        InvalidParameter: an argument is wrong; `field` names it.
        NotFound: there is no such session, project or live actor.
        AlreadyExists: an open subscription has this name and another subscriber or source.
        Conflict: the stored cursor of this name is one of another session or project.
    """
    request = OpenSubscription(
        subscriber=subscriber.name if isinstance(subscriber, Ref) else subscriber,
        session_id=session_id,
        project_id=project_id,
        after=after,
        name=name,
        restart_seconds=restart_seconds,
    )
    await _started(system, request.subscriber)
    ref = system.ref(SUBSCRIPTIONS)
    opened = await ask_with_retry(lambda: ref.ask(request))
    return Subscription(system, opened.name, opened.after)


async def _started(system: System, name: str) -> None:
    """Wait a moment for an actor whose supervisor was spawned just before."""

    async def look() -> None:
        if system.lookup(name) is None:
            raise ActorDead(f"{name} is not alive")

    with contextlib.suppress(ActorDead):
        await ask_with_retry(look, seconds=START_SECONDS)
