"""How an actor's children end with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.kit.endings import end_actor

if TYPE_CHECKING:
    from oubliette.clock import Clock
    from oubliette.kit.actor import Actor


async def end_children(children: dict[str, Actor], clock: Clock, *, now: bool) -> None:
    """End `children`, the last started first, each within its own limit.

    `now` gives them no time: the parent was cancelled.
    """
    if now:
        for child in reversed(list(children.values())):
            child.actor_cancel()
    for child in reversed(list(children.values())):
        await end_actor(child, 0 if now else child.actor_limit, clock.call_later)
