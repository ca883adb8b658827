"""What goes on beside an actor's mailbox: timers, and tasks whose outcome comes as a message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from oubliette.kit.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oubliette.clock import Clock, TimerHandle
    from oubliette.kit.messages import Message
    from oubliette.kit.scope import Aside

T = TypeVar("T")


class Timer:
    """A message for later, made by `Actor.after`."""

    __slots__ = ("_handle", "_owned", "_send")

    def __init__(
        self, owned: set[Timer], clock: Clock, delay: float, send: Callable[[], None]
    ) -> None:
        self._owned = owned
        self._send = send
        owned.add(self)
        self._handle: TimerHandle = clock.call_later(delay, self._fire)

    def cancel(self) -> None:
        """Send nothing; does nothing once it was sent."""
        self._owned.discard(self)
        self._handle.cancel()

    def _fire(self) -> None:
        if self in self._owned:
            self._owned.discard(self)
            self._send()


class SideTask:
    """A task of an actor beside its mailbox, made by `Actor.pipe_to_self`."""

    __slots__ = ("_broke", "_cancelled", "_post", "_scope", "_task")

    def __init__(
        self,
        scope: Aside,
        post: Callable[[Message], None],
        broke: Callable[[BaseException], None],
    ) -> None:
        self._scope = scope
        self._post = post
        self._broke = broke
        self._cancelled = False
        self._task: asyncio.Task[None] | None = None

    def start(
        self,
        awaitable: Awaitable[T],
        ok: Callable[[T], Message],
        err: Callable[[BaseException], Message],
    ) -> asyncio.Task[None]:
        """Begin to wait; the running loop is the actor's."""
        task = asyncio.get_running_loop().create_task(self._run(awaitable, ok, err))
        self._task = task
        return task

    def cancel(self) -> None:
        """End it; neither outcome is sent. Does nothing once it is done."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _run(
        self,
        awaitable: Awaitable[T],
        ok: Callable[[T], Message],
        err: Callable[[BaseException], Message],
    ) -> None:
        current_scope.set(self._scope)
        try:
            try:
                message = ok(await awaitable)
            except (Exception, asyncio.CancelledError) as error:
                # A cancellation that is not ours is an outcome of what was awaited.
                task: asyncio.Task[Any] | None = self._task
                if self._cancelled or (
                    isinstance(error, asyncio.CancelledError) and task and task.cancelling()
                ):
                    raise
                message = err(error)
            self._post(message)
        except Exception as error:
            self._broke(error)
