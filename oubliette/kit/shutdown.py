"""Shutdown of an actor and its children: a stop message, then cancellation, then abandonment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from oubliette.kit.mailbox import Envelope, Mailbox
from oubliette.kit.messages import Stop
from oubliette.kit.replies import LoopReply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oubliette.clock import Clock, TimerHandle

    CallLater = Callable[[float, Callable[[], object]], TimerHandle]

GRACE = 1.0
"""Seconds of real time that a cancelled actor has for `on_exit`, before that is cancelled too."""


class RunningActor(Protocol):
    """A live actor, as far as other parts of the kit need it to watch and end it."""

    @property
    def name(self) -> str:
        """Its name in the System."""
        ...

    @property
    def incarnation(self) -> int:
        """Number of this incarnation."""
        ...

    @property
    def actor_inbox(self) -> Mailbox:
        """Its mailbox."""
        ...

    @property
    def actor_limit(self) -> float:
        """Seconds that it has to end before it is cancelled."""
        ...

    def actor_cancel(self) -> None:
        """Cancel the current activity; `on_exit` still runs."""
        ...

    def actor_abandon(self) -> None:
        """Treat it as ended although its task still runs."""
        ...


async def within(reply: LoopReply, seconds: float, call_later: CallLater) -> bool:
    """Wait at most `seconds` for `reply`; return whether it came. An error in it is raised."""
    waiting = asyncio.get_running_loop().create_future()

    def wake(_: Any = None) -> None:
        if not waiting.done():
            waiting.set_result(None)

    future = reply.future
    future.add_done_callback(wake)
    timer = call_later(seconds, wake)
    try:
        if not future.done():
            await waiting
    finally:
        timer.cancel()
        future.remove_done_callback(wake)
    if not future.done():
        return False
    future.result()
    return True


async def end_actor(actor: RunningActor, limit: float, call_later: CallLater) -> bool:
    """Stop `actor`; cancel it after `limit` seconds, at once if that is 0.

    Returns:
        Whether it ended without being cancelled.
    """
    box = actor.actor_inbox
    gone = LoopReply()
    box.watch(gone)
    try:
        if limit > 0:
            box.post(Envelope(Stop()), urgent=True)
            if await within(gone, limit, call_later):
                return True
        # Real time from here on: a virtual clock does not advance for an actor that hangs.
        loop = asyncio.get_running_loop()
        for _ in range(2):
            box.on_loop(actor.actor_cancel)
            if await within(gone, GRACE, loop.call_later):
                return False
        box.on_loop(actor.actor_abandon)
        return False
    finally:
        box.unwatch(gone)


async def end_children(children: Mapping[str, RunningActor], clock: Clock, *, now: bool) -> None:
    """End `children`, the last started first, each within its own limit.

    With `now` they have no time and are cancelled at once: the parent was cancelled.
    """
    if now:
        for child in reversed(list(children.values())):
            child.actor_cancel()
    for child in reversed(list(children.values())):
        await end_actor(child, 0 if now else child.actor_limit, clock.call_later)
