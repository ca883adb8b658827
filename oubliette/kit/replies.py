"""Receivers of answers: a coroutine of any loop, or the asker of a deferred answer."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from oubliette.kit.messages import Down

    ExcInfo = (
        tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    )


class LoopReply:
    """Answer that a coroutine awaits; may be set from any thread, the first one counts."""

    __slots__ = ("future", "loop", "on_gone", "thread")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.thread = threading.get_ident()
        self.on_gone: Callable[[], None] | None = None

    @property
    def done(self) -> bool:
        """Whether it was answered, or is no longer waited for."""
        return self.future.done()

    def set(self, value: Any = None) -> None:
        """Answer, unless it is already answered or given up."""
        if threading.get_ident() == self.thread:
            if not self.future.done():
                self.future.set_result(value)
        else:
            self._from_afar(self.set, value)

    def set_exception(self, exc_info: ExcInfo | None = None) -> None:
        """Answer with an error, unless it is already answered or given up."""
        error = (exc_info or sys.exc_info())[1]
        if error is not None:
            self.set_error(error)

    def set_error(self, error: BaseException) -> None:
        """Answer with this error, unless it is already answered or given up."""
        if threading.get_ident() == self.thread:
            if not self.future.done():
                self.future.set_exception(error)
        else:
            self._from_afar(self.set_error, error)

    def deliver(self, down: Down) -> None:
        """Receive the notice that a watched actor has ended."""
        self.set(down)

    def give_up(self) -> None:
        """Mark it as no longer waited for."""
        if self.on_gone is not None:
            self.on_gone()
            self.on_gone = None

    def _from_afar(self, method: Callable[[Any], None], argument: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(method, argument)
        except RuntimeError:
            # The asker's loop is closed: there is no receiver left.
            return


class Deferred:
    """Answer to an ask that `Actor.defer` detached from its handler."""

    __slots__ = ("_answered", "_forget", "_on_gone", "_reply", "asked", "deadline")

    def __init__(
        self,
        reply: Any,
        deadline: float | None,
        forget: Callable[[Deferred], None],
    ) -> None:
        self._reply = reply
        self._answered = reply is None
        self.asked = reply is not None
        """Whether an answer is expected; a `tell` expects none."""
        self._forget = forget
        self._on_gone: Callable[[], object] | None = None
        self.deadline = deadline
        """Monotonic seconds of the System's clock at which the asker gives up."""
        if reply is not None:
            reply.on_gone = self._gone

    @property
    def done(self) -> bool:
        """Whether it was answered, or the asker no longer waits."""
        return self._answered or self._reply.done

    def set(self, value: Any = None) -> bool:
        """Answer with `value`; return whether this was the answer that counted."""
        if self._settle():
            self._reply.set(value)
            return True
        return False

    def set_error(self, error: BaseException) -> bool:
        """Answer with an error; return whether this was the answer that counted."""
        if self._settle():
            self._reply.set_exception((type(error), error, error.__traceback__))
            return True
        return False

    def when_gone(self, callback: Callable[[], object]) -> None:
        """Call `callback` if the asker no longer waits before it is answered; at once if so."""
        if self.done:
            callback()
        else:
            self._on_gone = callback

    def _settle(self) -> bool:
        counts = not self.done
        if not self._answered:
            self._answered = True
            self._reply.on_gone = None
            self._forget(self)
        return counts

    def _gone(self) -> None:
        self._answered = True
        self._forget(self)
        if self._on_gone is not None:
            self._on_gone()
