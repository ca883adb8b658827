"""Activities beside an actor's mailbox: timers, and work whose outcome comes as a message."""

from __future__ import annotations

import asyncio
import inspect
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from oubliette.kit.mailbox import Envelope
from oubliette.kit.trace_context import current_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oubliette.clock import Clock, TimerHandle
    from oubliette.kit.mailbox import Mailbox
    from oubliette.kit.messages import Message
    from oubliette.kit.replies import ExcInfo
    from oubliette.kit.trace_context import DetachedScope

T = TypeVar("T")


class Sender:
    """Sender of messages to the actor that made it, with the trace of that moment."""

    __slots__ = ("_box", "_name", "_trace")

    def __init__(self, box: Mailbox, name: str, trace: dict[str, str] | None) -> None:
        self._box = box
        self._name = name
        self._trace = trace

    def __call__(self, message: Message) -> None:
        """Send one message; do nothing once the actor has ended."""
        box = self._box
        if not box.closed:
            if box.codec is not None:
                message = box.codec(message)
            box.post(Envelope(message, None, self._name, None, self._trace), urgent=True)


class ActorTimer:
    """Timer that sends a message to its actor, made by `Actor.after`."""

    __slots__ = ("_handle", "_owned", "_send", "_what")

    def __init__(
        self,
        owned: set[ActorTimer],
        clock: Clock,
        delay: float,
        send: Callable[..., None],
        *what: object,
    ) -> None:
        self._owned = owned
        self._send = send
        self._what = what
        owned.add(self)
        self._handle: TimerHandle = clock.call_later(delay, self._fire)

    def cancel(self) -> None:
        """Cancel the timer; does nothing once the message was sent."""
        self._owned.discard(self)
        self._handle.cancel()

    def _fire(self) -> None:
        if self in self._owned:
            self._owned.discard(self)
            self._send(*self._what)


class AnswerToSelf:
    """Receiver of the answer to `Actor.ask_to_self`, which it sends on as a message, once."""

    __slots__ = ("_box", "_broke", "_err", "_ok", "_post", "_timer", "done", "on_gone")

    def __init__(
        self,
        box: Mailbox,
        ok: Callable[[Any], Message],
        err: Callable[[BaseException], Message],
        post: Callable[[Message], None],
        broke: Callable[[BaseException], None],
    ) -> None:
        self._box = box
        self._ok = ok
        self._err = err
        self._post = post
        self._broke = broke
        self._timer: ActorTimer | None = None
        self.done = False
        """Whether it was answered, or given up."""
        self.on_gone: Callable[[], None] | None = None

    def within(self, timer: ActorTimer) -> None:
        """Cancel `timer`, which gives up, once there is an answer."""
        if self.done:
            timer.cancel()
        else:
            self._timer = timer

    def set(self, value: Any = None) -> None:
        """Answer, unless it is already answered or given up."""
        self._box.on_loop(lambda: self._settle(self._ok, value))

    def set_exception(self, exc_info: ExcInfo | None = None) -> None:
        """Answer with an error, unless it is already answered or given up."""
        error = (exc_info or sys.exc_info())[1]
        if error is not None:
            self.set_error(error)

    def set_error(self, error: BaseException) -> None:
        """Answer with this error, unless it is already answered or given up."""
        self._box.on_loop(lambda: self._settle(self._err, error))

    def give_up(self, error: BaseException) -> None:
        """Answer with this error, and notify the asked actor that no answer is expected."""
        gone, self.on_gone = self.on_gone, None
        self._settle(self._err, error)
        if gone is not None:
            gone()

    def _settle(self, make: Callable[[Any], Message], outcome: Any) -> None:
        if self.done:
            return
        self.done = True
        timer, self._timer = self._timer, None  # each refers to the other
        if timer is not None:
            timer.cancel()
        try:
            try:
                message = make(outcome)
            except Exception as error:
                if make is self._err:
                    raise
                message = self._err(error)
            self._post(message)
        except Exception as error:
            self._broke(error)


class PipedTask:
    """A task of an actor beside its mailbox, made by `Actor.pipe_to_self`."""

    __slots__ = ("_broke", "_cancelled", "_post", "_scope", "_task")

    def __init__(
        self,
        scope: DetachedScope,
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
        """Start the task; the running loop is the actor's."""
        task = asyncio.get_running_loop().create_task(self._run(awaitable, ok, err))
        self._task = task
        if inspect.iscoroutine(awaitable):
            # If cancelled before its first step, `_run` never awaits it.
            task.add_done_callback(lambda _: awaitable.close())
        return task

    def cancel(self) -> None:
        """Cancel the task; neither outcome is sent. Does nothing once it is done."""
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
                # A cancellation that is not ours is an outcome of the awaited operation.
                task: asyncio.Task[Any] | None = self._task
                if self._cancelled or (
                    isinstance(error, asyncio.CancelledError) and task and task.cancelling()
                ):
                    raise
                message = err(error)
            self._post(message)
        except Exception as error:
            self._broke(error)
