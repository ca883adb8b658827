"""Removal of ended containers from the engine and from the store, repeated until it works."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from tenacity import wait_exponential_jitter

from oubliette.actors.container.jobs import Removed, RemovePending
from oubliette.actors.store.actor import Transact
from oubliette.errors import OublietteError
from oubliette.kit.retry import Failures, ask_with_retry
from oubliette.runtime.store.operations import DeleteContainer

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.kit import Actor
    from oubliette.kit.timers import ActorTimer
    from oubliette.records import Container

log = structlog.get_logger(__name__)

_BACKOFF: Final = wait_exponential_jitter(multiplier=0.1, max=10.0, jitter=0.1)


class ContainerRemoval:
    """Removal of the containers of one ContainerActor that have ended, or are of no use to it.

    The actor passes on `Removed` to `ended` and `RemovePending` to `again`.

    Args:
        context: ports of the server.
        actor: the actor whose mailbox gets the outcomes.
    """

    def __init__(self, context: ActorContext, actor: Actor) -> None:
        self._context = context
        self._actor = actor
        self._pending: dict[str, Container] = {}
        """By id: containers that are still to be removed."""
        self._timer: ActorTimer | None = None
        self.failures = Failures(_BACKOFF)
        """Failures of the engine in a row, of any request of the actor."""

    @property
    def idle(self) -> bool:
        """Whether no container is left to be removed."""
        return not self._pending

    def expect(self, record: Container) -> None:
        """Keep a container in mind, until its removal is reported as done."""
        self._pending[record.id] = record

    def begin(self, record: Container) -> None:
        """Remove a container; the actor gets `Removed`."""
        self.expect(record)
        self._actor.pipe_to_self(
            self.remove(record),
            lambda _: Removed(container_id=record.id),
            lambda error: Removed(container_id=record.id, error=str(error)),
        )

    async def clear(self) -> None:
        """Remove now all containers that are expected; the failed ones are tried again later."""
        for record in list(self._pending.values()):
            try:
                await self.remove(record)
            except OublietteError as error:
                self.ended(Removed(container_id=record.id, error=str(error)))
            else:
                self._pending.pop(record.id, None)

    def ended(self, message: Removed) -> None:
        """Record the outcome of a removal, and try again later if it failed."""
        if message.error is None:
            self._pending.pop(message.container_id, None)
            self.failures.reset()
            return
        log.warning("not removed", container_id=message.container_id, reason=message.error)
        if self._timer is None:
            self._timer = self._actor.after(self.failures.next_delay(), RemovePending())

    def again(self) -> None:
        self._timer = None
        for record in list(self._pending.values()):
            self.begin(record)

    async def remove(self, record: Container) -> None:
        """Remove a container from the engine, and forget it.

        Raises:
            OublietteError: the engine, or the store, did not do it.
        """
        await self._context.runtime.remove(record.id)
        await self.forget(record)

    async def forget(self, record: Container) -> None:
        """Remove what is stored of a container that the engine does not have."""
        await asyncio.to_thread(self._context.folders.remove_spool, record.id)
        await self._delete(record.id)

    async def undo(self, container_id: str) -> None:
        """Undo half a start. If the engine does not answer, the next server removes the remains."""
        try:
            await self._context.runtime.remove(container_id)
            await self._delete(container_id)
        except OublietteError as error:
            log.warning("half a container is left", container_id=container_id, reason=str(error))

    async def _delete(self, container_id: str) -> None:
        op = DeleteContainer(container_id)
        await ask_with_retry(lambda: self._context.store.ask(Transact(ops=(op,))))
