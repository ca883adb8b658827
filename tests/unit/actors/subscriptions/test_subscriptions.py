"""A subscriber gets the log: in order, without gaps, over restarts of every part."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.actors.messages import (
    CloseSubscription,
    EventsCommitted,
    EventsDeleted,
    OpenSubscription,
    SubscriptionEnded,
)
from oubliette.actors.store.actor import StoreActor, Transact
from oubliette.actors.subscriptions import Subscription, log_source, subscribe
from oubliette.actors.subscriptions.actor import SubscriptionActor
from oubliette.actors.subscriptions.stored_cursor import (
    SubscriptionMemory,
    SubscriptionPlan,
    SubscriptionTable,
)
from oubliette.actors.subscriptions.supervisor import SUBSCRIPTIONS, SubscriptionsActor
from oubliette.errors import (
    AlreadyExists,
    Conflict,
    InvalidParameter,
    NotFound,
    StorageUnavailable,
)
from oubliette.kit import Actor, ChildSpec, Message, Supervisor, System, WhichChildren, handles
from oubliette.kit.retry import ask_with_retry
from oubliette.runtime.store import MEMORY, Database, Reader, operations
from tests.unit.runtime.store import samples
from tests.unit.runtime.store.samples import event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.kit import Ref
    from oubliette.records import Event

pytestmark = pytest.mark.anyio


class Notes:
    """What subscribers took, over all incarnations."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.batches: list[int] = []
        self.deleted: list[tuple[str, int, int]] = []
        self.ended: list[str] = []
        self.lives = 0
        self.refuse = 0
        """Batches that fail in the handler."""
        self.open = asyncio.Event()
        self.open.set()
        self.entered = asyncio.Event()


class Break(Message):
    """Fail."""


class Auditor(Actor):
    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def on_start(self) -> None:
        self._notes.lives += 1

    @handles(EventsCommitted)
    async def _seen(self, message: EventsCommitted) -> None:
        self._notes.entered.set()
        await self._notes.open.wait()
        if self._notes.refuse:
            self._notes.refuse -= 1
            raise ValueError("not now")
        self._notes.events += message.events
        self._notes.batches.append(len(message.events))

    @handles(EventsDeleted)
    def _deleted(self, message: EventsDeleted) -> None:
        self._notes.deleted.append((message.session_id, message.first, message.before))

    @handles(SubscriptionEnded)
    def _ended(self, message: SubscriptionEnded) -> None:
        self._notes.ended.append(message.reason)

    @handles(Break)
    def _break(self, _: Break) -> None:
        raise RuntimeError("told to")


class Deaf(Actor):
    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    @handles(SubscriptionEnded)
    def _ended(self, message: SubscriptionEnded) -> None:
        self._notes.ended.append(message.reason)


class World:
    """A System with a store, subscriptions, and a supervised subscriber."""

    def __init__(self, system: System, database: Database) -> None:
        self.system = system
        self.database = database
        self.reader = Reader(database, 2)
        self.notes = Notes()
        self.table = SubscriptionTable()
        store = ChildSpec(name="store", cls=StoreActor, args=(database,))
        system.spawn(Supervisor, [store], name="stores", max_restarts=100)
        self.store = system.ref("stores/store")
        spec = ChildSpec(
            name=SUBSCRIPTIONS,
            cls=SubscriptionsActor,
            args=(self.store, self.reader, self.table),
            known_as=SUBSCRIPTIONS,
        )
        auditor = ChildSpec(name="auditor", cls=Auditor, args=(self.notes,), known_as="auditor")
        system.spawn(Supervisor, [spec], name="root")
        system.spawn(Supervisor, [auditor], name="mine", max_restarts=100)
        self.auditor = system.ref("auditor")
        self._indexes: dict[str, int] = {}

    async def commit(self, count: int = 1, session: str = "s1") -> None:
        first = self._indexes.get(session, 0)
        self._indexes[session] = first + count
        # With a source, so that a commit whose answer was lost can be repeated.
        events = tuple(
            event(index, session, source=f"p:{index}:0") for index in range(first, first + count)
        )
        await self.transact(operations.AppendEvents(events))

    async def transact(self, *ops: Any) -> None:
        await ask_with_retry(lambda: self.store.ask(Transact(ops=ops)))

    async def subscribe(self, subscriber: Ref | str = "auditor", **more: Any) -> Subscription:
        return await subscribe(self.system, subscriber, **more)

    async def until_taken(self, count: int) -> list[tuple[str, int]]:
        await until(lambda: len(self.notes.events) >= count)
        return [(each.session_id, each.index) for each in self.notes.events]

    async def subscriptions(self) -> list[str]:
        return list(await self.system.ref(SUBSCRIPTIONS).ask(WhichChildren()))

    async def fail(self, name: str) -> None:
        """Fail the actor of this name, and wait until its supervisor has started it again."""
        actor: Any = self.system.actor(name)
        actor._actor_post_broke(RuntimeError("told to"))
        await until(lambda: (now := self.system.actor(name)) is not None and now is not actor)


async def until(condition: Any) -> None:
    """Let the loop turn until it holds; the test's own time limit ends it."""
    while not condition():
        await asyncio.sleep(0.001)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with asyncio.timeout(20), System(roundtrip_messages=True) as system:
        world = World(system, Database(MEMORY))
        for supervisor in ("stores", "root", "mine"):
            assert await system.ref(supervisor).ask(WhichChildren())
        await world.transact(
            operations.PutProject(samples.project(1)),
            operations.PutProject(samples.project(2)),
            operations.PutSession(samples.session(1)),
            operations.PutSession(samples.session(2)),
            operations.PutSession(samples.session(3, project_id="proj_2")),
        )
        yield world
    await world.reader.aclose()


def log_of(session: str, count: int) -> list[tuple[str, int]]:
    return [(session, index) for index in range(count)]


# ---------------------------------------------------------------------- where it begins


async def test_a_subscriber_gets_the_log_from_its_first_event_and_then_each_commit(world):
    await world.commit(3)
    await world.subscribe(session_id="s1", after=-1)
    assert await world.until_taken(3) == log_of("s1", 3)
    await world.commit(2)
    await world.commit(1, "s2")
    await world.commit(1)
    assert await world.until_taken(6) == log_of("s1", 6)


async def test_a_subscriber_may_be_about_to_be_started_by_its_supervisor(world):
    spec = ChildSpec(name="late", cls=Auditor, args=(world.notes,), known_as="late")
    world.system.spawn(Supervisor, [spec])
    assert world.system.lookup("late") is None
    await world.subscribe("late", session_id="s1")
    await world.commit(1)
    assert await world.until_taken(1) == log_of("s1", 1)


async def test_without_a_cursor_it_begins_with_what_is_committed_next(world):
    await world.commit(3)
    subscription = await world.subscribe(world.auditor, session_id="s1")
    assert subscription.after == 2
    await world.commit(2)
    assert await world.until_taken(2) == log_of("s1", 5)[3:]


async def test_a_cursor_is_the_index_of_the_last_event_that_is_not_sent(world):
    await world.commit(5)
    await world.subscribe(session_id="s1", after=2)
    assert await world.until_taken(2) == log_of("s1", 5)[3:]


async def test_a_project_and_everything_come_in_the_order_of_the_commits(world):
    other = Notes()
    world.system.spawn(Auditor, other, name="other")
    await world.subscribe(project_id="proj_1", after=-1)
    await world.subscribe("other", after=-1)
    committed = [("s1", 0), ("s3", 0), ("s2", 0), ("s3", 1), ("s1", 1)]
    for session, _ in committed:
        await world.commit(1, session)
    assert await world.until_taken(3) == [each for each in committed if each[0] != "s3"]
    await until(lambda: len(other.events) == 5)
    assert [(each.session_id, each.index) for each in other.events] == committed


async def test_a_long_log_comes_in_batches_and_the_next_waits_for_the_acknowledgement(world):
    world.notes.open.clear()
    await world.commit(600)
    await world.subscribe(session_id="s1", after=-1)
    await world.notes.entered.wait()
    await world.commit(10)
    assert not world.system.actor("auditor").actor_inbox.items, "it has only one batch"
    world.notes.open.set()
    assert await world.until_taken(610) == log_of("s1", 610)
    assert max(world.notes.batches) == log_source.BATCH_EVENTS


# ---------------------------------------------------------------------- restarts


async def test_a_subscriber_that_is_restarted_misses_nothing_and_gets_nothing_twice(world):
    await world.subscribe(session_id="s1", after=-1)
    for _ in range(5):
        await world.commit(2)
        world.auditor.tell(Break())
        await world.commit(2)
    assert await world.until_taken(20) == log_of("s1", 20)
    await until(lambda: world.notes.lives == 6)
    await world.commit(1)
    assert await world.until_taken(21) == log_of("s1", 21)


async def test_a_batch_that_the_subscriber_did_not_acknowledge_comes_again(world):
    world.notes.open.clear()
    await world.subscribe(session_id="s1")
    await world.commit(2)
    await world.notes.entered.wait()
    await world.auditor.kill()
    world.notes.open.set()
    assert await world.until_taken(2) == log_of("s1", 2)


@pytest.mark.parametrize("again", range(3))
async def test_a_store_that_is_restarted_costs_no_event(world, again):
    await world.subscribe(session_id="s1", after=-1)
    await world.subscribe("auditor", after=-1, name="all")
    for _ in range(2):
        await world.commit(1)
        await world.fail("stores/store")
        await world.commit(1)  # before the subscription is renewed
    await world.until_taken(8)
    assert sorted(each.index for each in world.notes.events) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_subscription_that_fails_continues_where_it_was(world):
    subscription = await world.subscribe(session_id="s1", after=-1)
    await world.commit(3)
    await world.until_taken(3)
    await world.fail(f"{SUBSCRIPTIONS}/{subscription.name}")
    await world.commit(2)
    assert await world.until_taken(5) == log_of("s1", 5)


async def test_all_subscriptions_continue_when_their_supervisor_fails(world):
    subscription = await world.subscribe(session_id="s1", after=-1)
    await world.commit(3)
    await world.until_taken(3)
    await world.fail(SUBSCRIPTIONS)
    await world.commit(2)
    assert await world.until_taken(5) == log_of("s1", 5)
    assert await subscription.end()
    assert not await subscription.end()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ours", [False, True], ids=["theirs", "ours"])
async def test_any_order_of_commits_and_failures_costs_no_event(world, seed, ours):
    chance = random.Random(seed)
    one = await world.subscribe(session_id="s1", after=-1)
    parts = ["auditor", "stores/store"]
    if ours:
        parts += [SUBSCRIPTIONS, f"{SUBSCRIPTIONS}/{one.name}"]
    committed = 0
    for _ in range(30):
        if chance.random() < 0.2:
            part = chance.choice(parts)
            actor: Any = world.system.actor(part)
            if actor is not None:
                actor._actor_post_broke(RuntimeError("told to"))
        else:
            count = chance.choice([1, 2, 300])
            await world.commit(count)
            committed += count
        for _ in range(chance.choice([0, 0, 1, 5, 50])):
            await asyncio.sleep(0)
    await until(lambda: world.notes.events and world.notes.events[-1].index == committed - 1)
    taken = [each.index for each in world.notes.events]
    if ours:  # what a failed subscription had sent comes again: one batch, from its first event
        taken = list(dict.fromkeys(taken))
    assert taken == list(range(committed))


async def test_a_named_subscription_goes_on_in_the_next_process(world):
    subscription = await world.subscribe(session_id="s1", after=-1, name="audit")
    await world.commit(3)
    await world.until_taken(3)
    await until_async(lambda: stored(world, "audit"), 2)
    assert await subscription.end()
    await world.commit(2)
    again = await world.subscribe(session_id="s1", name="audit")
    assert again.after == 2
    assert await world.until_taken(5) == log_of("s1", 5)


async def test_a_named_subscription_that_took_nothing_begins_where_it_was_opened(world):
    await world.commit(1)
    subscription = await world.subscribe(session_id="s1", name="audit")
    await subscription.end()
    await world.commit(2)
    await world.subscribe(session_id="s1", name="audit")
    assert await world.until_taken(2) == log_of("s1", 3)[1:]


async def test_a_forgotten_cursor_is_not_used_again(world):
    subscription = await world.subscribe(session_id="s1", name="audit")
    await subscription.end(forget=True)
    await world.commit(2)
    again = await world.subscribe(session_id="s1", name="audit")
    assert again.after == 1


async def stored(world: World, name: str) -> int:
    found = await world.reader.meta(f"subscription/{name}")
    return int(found.rpartition(":")[2].rstrip("}"))


async def until_async(read: Any, value: int) -> None:
    while await read() != value:
        await asyncio.sleep(0.001)


# ---------------------------------------------------------------------- ends


async def test_a_subscription_ends_with_its_subscriber(world):
    ref = world.system.spawn(Auditor, world.notes, name="other")
    await world.subscribe(ref, session_id="s1", restart_seconds=0.05)
    await ref.stop()
    await world.commit(1)
    while await world.subscriptions():
        await asyncio.sleep(0.001)
    assert world.table.open == {}
    assert world.notes.events == []


async def test_a_handler_that_fails_a_few_times_gets_the_batch_again(world):
    world.notes.refuse = 2
    await world.subscribe(session_id="s1")
    await world.commit(2)
    assert await world.until_taken(2) == log_of("s1", 2)
    assert world.notes.lives == 1


async def test_a_subscriber_without_a_handler_is_told_that_the_subscription_ends(world):
    world.system.spawn(Deaf, world.notes, name="deaf")
    await world.subscribe("deaf", session_id="s1")
    await world.commit(1)
    await until(lambda: world.notes.ended)
    assert "does not handle EventsCommitted" in world.notes.ended[0]
    while await world.subscriptions():
        await asyncio.sleep(0.001)


async def test_events_that_were_deleted_are_named(world):
    await world.commit(5)
    await world.transact(operations.DeleteSessionEvents("s1", 2))
    await world.subscribe(session_id="s1", after=0)
    assert await world.until_taken(2) == log_of("s1", 5)[3:]
    assert world.notes.deleted == [("s1", 1, 3)]


async def test_events_that_were_deleted_are_named_to_a_subscriber_of_everything(world):
    await world.commit(5)
    await world.transact(operations.DeleteSessionEvents("s1", 2))
    await world.subscribe(after=-1)
    assert await world.until_taken(2) == log_of("s1", 5)[3:]
    assert world.notes.deleted == [("s1", 0, 3)]


async def test_a_log_that_was_deleted_to_its_end_is_named_too(world):
    await world.commit(2)
    await world.transact(operations.DeleteSessionEvents("s1", 1))
    await world.subscribe(session_id="s1", after=-1)
    await until(lambda: world.notes.deleted)
    await world.commit(1)
    assert await world.until_taken(1) == [("s1", 2)]
    assert world.notes.deleted == [("s1", 0, 2)]


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (NotFound, {"session_id": "s9"}),
        (NotFound, {"project_id": "proj_9"}),
        (NotFound, {"subscriber": "ghost"}),
        (InvalidParameter, {"session_id": "s1", "project_id": "proj_1"}),
        (InvalidParameter, {"name": "a/b"}),
        (InvalidParameter, {"name": ""}),
        (InvalidParameter, {"after": -2}),
        (InvalidParameter, {"restart_seconds": float("inf")}),
        (InvalidParameter, {"restart_seconds": float("nan")}),
    ],
)
async def test_a_request_that_is_wrong_is_refused(world, error, fields):
    with pytest.raises(error):
        await world.subscribe(**fields)
    assert await world.subscriptions() == []


async def test_a_name_opened_again_is_the_same_subscription_and_no_other(world):
    await world.subscribe(session_id="s1", name="audit")
    await world.subscribe(session_id="s1", name="audit")
    assert await world.subscriptions() == ["audit"]
    with pytest.raises(AlreadyExists, match="all sessions|the session s1"):
        await world.subscribe(name="audit")
    assert await world.system.ref(SUBSCRIPTIONS).ask(CloseSubscription(name="audit"))
    with pytest.raises(Conflict, match="the session s1, not all sessions"):
        await world.subscribe(name="audit")


async def test_a_cursor_beyond_the_log_waits_for_what_comes_next(world):
    await world.commit(1)
    opened = await world.system.ref(SUBSCRIPTIONS).ask(
        OpenSubscription(subscriber="auditor", session_id="s1", after=100)
    )
    assert opened.after == 0
    await world.commit(1)
    assert await world.until_taken(1) == [("s1", 1)]


async def test_the_actor_of_a_subscription_can_be_used_alone(world):
    await world.commit(3)
    plan = SubscriptionPlan(
        name="alone",
        subscriber="auditor",
        source=log_source.LogSource(session_id="s1"),
        durable=False,
        restart_seconds=1.0,
    )
    memory = SubscriptionMemory(cursor=0)
    ref = world.system.spawn(SubscriptionActor, world.store, world.reader, plan, memory)
    assert await world.until_taken(2) == log_of("s1", 3)[1:]
    await until(lambda: memory.cursor == 2)
    assert await ref.stop()


async def test_a_subscription_that_begins_while_the_log_cannot_be_read_goes_on_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.subscribe(name="kept")

    async def away() -> int:
        raise StorageUnavailable("the database cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(world.reader, "last_seq", away)
        await world.fail("subscriptions/kept")
        again: Any = world.system.actor("subscriptions/kept")
        await until(lambda: again._subscription._problem)
        await world.commit(3)
    assert await world.until_taken(3) == [("s1", 0), ("s1", 1), ("s1", 2)]
    assert world.system.actor("subscriptions/kept") is again, "it has not failed"
