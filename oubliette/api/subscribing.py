"""Subscriptions of a program's own actors to events, in process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from oubliette.errors import Conflict

if TYPE_CHECKING:
    from oubliette.actors.subscriptions import Subscription
    from oubliette.api.shared import ClientShared
    from oubliette.kit import Ref

    Subscriber: TypeAlias = Ref | str


async def subscribe(
    shared: ClientShared,
    subscriber: Subscriber,
    *,
    session_id: str | None = None,
    project_id: str | None = None,
    after: int | None = -1,
    name: str | None = None,
) -> Subscription:
    """Subscribe an actor of the embedded System.

    Raises:
        Conflict: this is a connection to a server.
    """
    shared.check()
    server: Any = getattr(shared.connection, "server", None)
    if server is None:
        raise Conflict(
            "an actor of this process can subscribe to a system in this process only",
            hint="over a connection: async for event in session.events(follow=True)",
        )
    from oubliette.actors.subscriptions import subscribe as begin

    return await begin(
        server.system,
        subscriber,
        session_id=session_id,
        project_id=project_id,
        after=after,
        name=name,
    )
