"""Supervisor of all subscriptions: opens and closes them on request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oubliette.actors.messages import CloseSubscription, OpenSubscription, SubscriptionOpened
from oubliette.actors.store.actor import Transact
from oubliette.actors.subscriptions.actor import SubscriptionActor
from oubliette.actors.subscriptions.log_source import LogSource
from oubliette.actors.subscriptions.stored_cursor import (
    SubscriptionMemory,
    SubscriptionPlan,
    delete_cursor,
    put_cursor,
    read_cursor,
    shown,
)
from oubliette.errors import AlreadyExists, InvalidParameter, NotFound
from oubliette.ids import new_uuid
from oubliette.ids import shown as quoted
from oubliette.kit import ChildSpec, DynamicSupervisor, handles

if TYPE_CHECKING:
    from oubliette.actors.subscriptions.stored_cursor import SubscriptionTable
    from oubliette.kit import Ref
    from oubliette.runtime.store.reader import Reader

SUBSCRIPTIONS: Final = "subscriptions"
MAX_RESTART_SECONDS: Final = 86_400.0
_NAME: Final = re.compile(r"[\w.@-]{1,100}", re.ASCII)


class SubscriptionsActor(DynamicSupervisor):
    """Supervisor that starts a SubscriptionActor on request. Its name must be `subscriptions`."""

    def __init__(self, store: Ref, reader: Reader, table: SubscriptionTable) -> None:
        super().__init__()
        self._store = store
        self._reader = reader
        self._table = table

    def on_start(self) -> None:
        """After a failure: start the subscriptions that were open."""
        super().on_start()
        for name in list(self._table.open):
            self._start_subscription(name)

    def on_forgotten(self, name: str) -> None:
        self._table.open.pop(name, None)

    @handles(OpenSubscription)
    async def _open(self, message: OpenSubscription) -> SubscriptionOpened:
        _check(message)
        source = LogSource(session_id=message.session_id, project_id=message.project_id)
        name = message.name or new_uuid()
        if name in self._table.open:
            return self._opened_before(name, message.subscriber, source)
        if self.system.lookup(message.subscriber) is None:
            raise NotFound(
                f"no actor named {quoted(message.subscriber)} is alive",
                hint="spawn the subscriber first, with this name",
            )
        await self._check_source(source)
        plan = SubscriptionPlan(
            name=name,
            subscriber=message.subscriber,
            source=source,
            durable=message.name is not None,
            restart_seconds=message.restart_seconds,
        )
        cursor = await self._first_cursor(plan, message.after)
        self._table.open[name] = (plan, SubscriptionMemory(cursor))
        self._start_subscription(name)
        return SubscriptionOpened(name=name, after=cursor)

    def _opened_before(self, name: str, subscriber: str, source: LogSource) -> SubscriptionOpened:
        plan, memory = self._table.open[name]
        if (plan.subscriber, plan.source) != (subscriber, source):
            raise AlreadyExists(
                f"the subscription {name} sends {shown(plan.source)} to {plan.subscriber}",
                hint="end it first, or use another name",
            )
        return SubscriptionOpened(name=name, after=memory.cursor)

    async def _check_source(self, source: LogSource) -> None:
        if source.session_id is not None and await self._reader.session(source.session_id) is None:
            raise NotFound(f"session {quoted(source.session_id)} not found")
        if source.project_id is not None and await self._reader.project(source.project_id) is None:
            raise NotFound(f"project {quoted(source.project_id)} not found")

    async def _first_cursor(self, plan: SubscriptionPlan, after: int | None) -> int:
        end = await plan.source.end(self._reader)
        if plan.durable:
            stored = await read_cursor(self._reader, plan.name, plan.source)
            after = after if stored is None else stored
        # A cursor beyond the log comes from another home: nothing would ever follow it.
        cursor = end if after is None else min(after, end)
        if plan.durable:
            # Stored before it is used: the next process must not begin later than this one.
            await self._store.ask(Transact(ops=(put_cursor(plan, cursor),)))
        return cursor

    def _start_subscription(self, name: str) -> None:
        plan, memory = self._table.open[name]
        self.ensure_child(
            ChildSpec(
                name=name,
                cls=SubscriptionActor,
                args=(self._store, self._reader, plan, memory),
                restart="transient",
                shutdown=1.0,
            )
        )

    @handles(CloseSubscription)
    async def _close(self, message: CloseSubscription) -> bool:
        known = await self.end_child(message.name)
        if message.forget:
            await self._store.ask(Transact(ops=(delete_cursor(message.name),)))
        return known


def _check(message: OpenSubscription) -> None:
    """Check the fields of a request.

    Raises:
        InvalidParameter: one of them is wrong.
    """
    if message.session_id is not None and message.project_id is not None:
        raise InvalidParameter(
            "session_id and project_id exclude each other",
            field="project_id",
            hint="a session belongs to one project: leave one of them out",
        )
    if message.name is not None and not _NAME.fullmatch(message.name):
        raise InvalidParameter(
            f"name {quoted(message.name)} is not the name of a subscription",
            field="name",
            hint="1 to 100 letters, digits, and . _ @ -",
        )
    if message.after is not None and message.after < -1:
        raise InvalidParameter(
            f"after is {message.after}", field="after", hint="-1: from the first event"
        )
    if not 0 <= message.restart_seconds <= MAX_RESTART_SECONDS:
        raise InvalidParameter(
            f"restart_seconds is {message.restart_seconds:g}",
            field="restart_seconds",
            hint=f"0 to {MAX_RESTART_SECONDS:g}",
        )
