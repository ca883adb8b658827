"""Asyncio actor type for Pykka: its three implementor hooks, and the loop as one task.

All code that depends on Pykka's internals is here and in `pykka_future.py`. Pykka's own tests run
against `AsyncioActor` (tests/unit/kit/test_pykka_suite.py). It departs from Pykka on purpose in one
thing: a BaseException ends the actor that raised it, not every actor of the process.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pykka
from pykka import ActorDeadError, ActorRegistry
from pykka.messages import _ActorStop  # pyright: ignore[reportPrivateUsage]

from oubliette.kit.mailbox import Mailbox
from oubliette.kit.pykka_future import AsyncioFuture

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from oubliette.kit.loop_bridge import LoopBridge
    from oubliette.kit.mailbox import Envelope

logger = logging.getLogger("pykka")

TURN = 0.0005
"""Seconds for which an actor handles messages before it yields to the others of its loop."""


class StopFlag:
    """Pykka's `actor_stopped`, without the kilobyte that a `threading.Event` costs each actor."""

    __slots__ = ("_event", "flag")

    def __init__(self) -> None:
        self.flag = False
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        """Return whether the actor takes no more messages."""
        return self.flag

    def set(self) -> None:
        """Set the flag: the actor takes no more messages."""
        self.flag = True
        if self._event is not None:
            self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait, in a thread, for at most `timeout` seconds."""
        if self._event is None:
            self._event = threading.Event()
        if self.flag:
            self._event.set()
        return self._event.wait(timeout)


class AsyncioActor(pykka.Actor):
    """A Pykka actor whose loop is a task; `on_start`, handlers and `on_stop` may be `async def`.

    All of them run in that one task, so that a task group opened in `on_start` may be closed in the
    last hook.
    """

    bridge: ClassVar[LoopBridge | None] = None
    """The loop for actors that are started by Pykka's `start`."""

    actor_inbox: Mailbox  # pyright: ignore[reportIncompatibleVariableOverride]
    _actor_task: asyncio.Task[None]

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        super().__init__()
        self.actor_inbox.undeliverable = _pykka_dead_letters
        self.actor_stopped = cast("threading.Event", StopFlag())
        self._actor_ref.actor_stopped = self.actor_stopped

    # ------------------------------------------------------------ Pykka's implementor hooks
    @staticmethod
    def _create_actor_inbox() -> Mailbox:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Mailbox()

    @staticmethod
    def _create_future() -> pykka.Future[Any]:
        return AsyncioFuture()

    def _start_actor_loop(self) -> None:
        bridge = self._actor_bridge()
        if threading.get_ident() == bridge.thread:
            self._actor_start_on(bridge)
        else:
            bridge.call(self._actor_start_on, bridge)

    # ------------------------------------------------------------ the loop
    def _actor_bridge(self) -> LoopBridge:
        bridge = self.bridge
        if bridge is None:
            raise RuntimeError(f"{self}: there is no loop for it; spawn it in a System")
        return bridge

    def _actor_start_on(self, bridge: LoopBridge) -> None:
        self.actor_inbox.bind(bridge)
        self._actor_task = bridge.loop.create_task(self._actor_loop())

    async def _actor_loop(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        try:
            await self._actor_set_up()
            await self._actor_run()
        except asyncio.CancelledError:
            # The cancellation is handled, and must not affect a cancel scope in a last hook.
            self._actor_task.uncancel()
            self._actor_was_cancelled()
        # Not in a `finally`: a coroutine that is discarded may not await.
        await self._actor_tear_down()

    async def _actor_run(self) -> None:
        inbox, receive = self.actor_inbox, self._actor_receive
        items, stopped = inbox.items, cast("StopFlag", self.actor_stopped)
        new_waiter = self._actor_task.get_loop().create_future
        until = perf_counter() + TURN
        while not stopped.flag:
            if not items:  # checked after each wake-up: it may be a late one
                inbox.waiter = waiter = new_waiter()
                await waiter
                until = perf_counter() + TURN
                continue
            if perf_counter() >= until:
                await asyncio.sleep(0)
                until = perf_counter() + TURN
                if not items or stopped.flag:
                    continue
            envelope = inbox.get()
            try:
                answer = receive(envelope)
                if type(answer) is CoroutineType:
                    answer: Any = await answer  # pyright: ignore[reportUnknownVariableType]
                reply = envelope.reply_to
                if reply is not None:
                    reply.set(answer)
            except Exception as error:
                await self._actor_receive_failed(envelope, error)
            except GeneratorExit:
                raise  # the task is discarded with its loop: nothing may be awaited now
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and self._actor_task.cancelling():
                    self._actor_refuse(envelope)
                    raise
                await self._actor_receive_broke(envelope, error)

    # ------------------------------------------------------------ Pykka's meaning of the steps
    async def _actor_set_up(self) -> None:
        await self._actor_call_hook(self.on_start)

    async def _actor_tear_down(self) -> None:
        self._actor_loop_teardown()
        self.actor_inbox.close()

    def _actor_receive(self, envelope: Envelope) -> Any:
        return self._handle_receive(envelope.message)

    async def _actor_receive_failed(self, envelope: Envelope, error: Exception) -> None:
        exc_info = (type(error), error, error.__traceback__)
        if envelope.reply_to is not None:
            logger.info("Exception returned from %s to caller:", self, exc_info=exc_info)
            envelope.reply_to.set_exception(exc_info)
        else:
            self._handle_failure(*exc_info)
            await self._actor_call_hook(self.on_failure, *exc_info)

    async def _actor_receive_broke(self, envelope: Envelope, error: BaseException) -> None:
        """Handle an error that is not an Exception: it ends this actor, and no other."""
        self._actor_refuse(envelope)
        logger.critical("%r in %s, which ends", error, self)
        await self._stop()

    def _actor_was_cancelled(self) -> None:
        if not self.actor_stopped.is_set():
            ActorRegistry.unregister(self.actor_ref)
            self.actor_stopped.set()

    def _stop(self) -> Coroutine[Any, Any, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ActorRegistry.unregister(self.actor_ref)
        self.actor_stopped.set()
        logger.debug("Stopped %s", self)
        return self._actor_call_hook(self.on_stop)

    async def _actor_call_hook(self, hook: Callable[..., Any], *args: Any) -> None:
        try:
            done = hook(*args)
            if type(done) is CoroutineType:
                await done
        except Exception:
            self._handle_failure(*sys.exc_info())

    def _actor_refuse(self, envelope: Envelope) -> None:
        self.actor_inbox.reject(envelope)


class _DeadLetterSink:
    """Answers the messages that a Pykka actor can no longer handle, as Pykka does."""

    def rejected(self, box: Mailbox, envelope: Envelope) -> None:
        """Answer a stop with None and any other ask with `ActorDeadError`."""
        reply = envelope.reply_to
        if reply is None:
            return
        if isinstance(envelope.message, _ActorStop):
            reply.set(None)
        else:
            error = ActorDeadError(f"{box.name or 'The actor'} stopped before it could answer")
            reply.set_exception((ActorDeadError, error, None))


_pykka_dead_letters = _DeadLetterSink()
