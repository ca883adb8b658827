"""The StoreActor: answers after the commit, tells subscribers before, pauses and comes back."""

from __future__ import annotations

import asyncio
import threading

import pytest

from oubliette import failpoints
from oubliette.actors.messages import EventsCommitted, caller_key
from oubliette.actors.store.actor import (
    FollowLog,
    GetRunningSince,
    GetStoreState,
    LogGrew,
    StoreActor,
    StoreState,
    Subscribe,
    Transact,
)
from oubliette.errors import Conflict, StorageUnavailable
from oubliette.kit import Actor, ActorDead, ChildSpec, Message, Supervisor, System, handles
from oubliette.records import Event
from oubliette.runtime.store import Database, Reader, operations
from tests.unit.runtime.store import samples
from tests.unit.runtime.store.samples import event, opened

pytestmark = pytest.mark.anyio
ME = caller_key("p", "me")


class _Hold(Message):
    """Do not handle anything more until the gate opens."""


class Listener(Actor):
    """Notes what it is told; can be made to take nothing for a while."""

    mailbox_size = 3

    def __init__(self, notes: list[object]) -> None:
        self.notes = notes
        self.gate = asyncio.Event()
        self.told = asyncio.Condition()

    @handles(EventsCommitted)
    async def _events(self, message: EventsCommitted) -> None:
        self.notes.append(message.events)

    @handles(_Hold)
    async def _hold(self, _: _Hold) -> None:
        await self.gate.wait()


@pytest.fixture
async def system():
    async with asyncio.timeout(20), System(roundtrip_messages=True) as system:
        yield system


@pytest.fixture
def store(system, database):
    return system.spawn(StoreActor, database, name="store")


@pytest.fixture
def at_once(database) -> bool:
    """Whether events are published as they are committed, not as they are read from the log."""
    return isinstance(database, Database)


@pytest.fixture
async def reader(database):
    reader = Reader(database, 2)
    yield reader
    await reader.aclose()


def mine(index: int, **changes) -> Event:
    return event(index, principal="p", caller_id="me", **changes)


def append(*events: Event) -> Transact:
    return Transact(ops=(operations.AppendEvents(events),))


async def until(condition) -> None:
    """Let the loop turn until it holds; the test's own time limit ends it."""
    while not condition():
        await asyncio.sleep(0.001)


# ---------------------------------------------------------------------- writes


async def test_a_transaction_is_answered_once_it_can_be_read(store, reader):
    answer = await store.ask(
        Transact(
            ops=(
                operations.PutSession(samples.session()),
                operations.AppendEvents((mine(0), event(1, data={"a": [None, 1.5, "x"]}))),
                operations.BumpMeta("epoch"),
                operations.RevokeToken("nothing", 1.0),
            )
        )
    )
    first, second = (stored.seq for stored in answer[1])
    assert 0 < first < second
    assert answer == (
        None,
        (mine(0, seq=first), event(1, data={"a": [None, 1.5, "x"]}, seq=second)),
        1,
        False,
    )
    assert await reader.events("s1") == list(answer[1])
    assert await reader.session("s1") == samples.session()
    assert await reader.last_index("s1") == 1
    assert await reader.last_seq() >= second


async def test_an_operation_that_cannot_be_done_is_the_askers_error_and_the_store_lives(store):
    with pytest.raises(Conflict):
        await store.ask(append(event(5)))
    assert len((await store.ask(append(event(0))))[0]) == 1


async def test_many_askers_at_once_get_each_their_own_answer(store, reader):
    async def write(number: int) -> None:
        for index in range(20):
            ((stored,),) = await store.ask(append(event(index, f"s{number}")))
            assert (stored.session_id, stored.index) == (f"s{number}", index)

    await asyncio.gather(*(write(number) for number in range(20)))
    assert len((await reader.committed_events(0, max_events=1000)).events) == 400


async def test_a_transaction_may_be_told_without_waiting(store, reader):
    store.tell(Transact(ops=(operations.PutMeta("a", "b"),)))
    store.tell(append(event(9)))  # its failure is nobody's
    await store.ask(Transact(ops=()))
    assert await reader.meta("a") == "b"


async def test_what_an_asker_gave_up_on_is_still_stored_whole(store, reader):
    asking = asyncio.ensure_future(store.ask(append(event(0))))
    await asyncio.sleep(0)
    asking.cancel()
    await store.ask(Transact(ops=()))
    assert [one.index for one in await reader.events("s1")] in ([], [0])


# ---------------------------------------------------------------------- news


async def test_subscribers_are_told_in_commit_order_before_the_asker_is_answered(
    system, store, at_once
):
    notes: list[object] = []
    system.spawn(Listener, notes, name="listener")
    await store.ask(Subscribe(caller_key=ME, name="listener"))

    async def write(session: str) -> None:
        for index in range(30):
            ((stored,),) = await store.ask(append(mine(index, session=session)))
            box = system.lookup("listener")._box
            waiting = [one for e in box.items for one in e.message.events]
            heard = [one for events in notes for one in events] + waiting
            assert stored in heard or not at_once

    await asyncio.gather(write("s1"), write("s2"))
    await until(lambda: sum(map(len, notes)) == 60)
    heard = [one.seq for events in notes for one in events]
    assert heard == sorted(heard)


async def test_a_batch_is_told_in_one_message_and_to_those_it_concerns_only(system, store, at_once):
    notes, others = [], []
    system.spawn(Listener, notes, name="listener")
    system.spawn(Listener, others, name="other")
    await store.ask(Subscribe(caller_key=ME, name="listener"))
    await store.ask(Subscribe(caller_key=caller_key("q", "me"), name="other"))
    await store.ask(append(mine(0, source="p:0:0"), event(1), mine(2)))
    again = append(mine(3, source="p:0:0"), mine(4, source="p:1:0"))
    await store.ask(again)
    with pytest.raises(Conflict):
        await store.ask(append(mine(4), mine(100)))
    await until(lambda: sum(map(len, notes)) == 3)
    told = [[one.index for one in events] for events in notes]
    assert told == [[0, 2], [3]] or (told == [[0, 2, 3]] and not at_once)
    assert others == []


async def test_who_has_ended_is_told_nothing(system, store):
    one, two = [], []
    first = system.spawn(Listener, one, name="one")
    system.spawn(Listener, two, name="two")
    for name in ("one", "two"):
        await store.ask(Subscribe(caller_key=ME, name=name))
    await first.stop()
    await store.ask(append(mine(0)))
    await until(lambda: two)
    assert [event.index for events in two for event in events] == [0]
    assert one == []


async def test_a_subscriber_whose_mailbox_is_full_is_told_everything_later_in_order(system, store):
    notes: list[object] = []
    ref = system.spawn(Listener, notes, name="listener")
    await store.ask(Subscribe(caller_key=ME, name="listener"))
    ref.tell(_Hold())
    for index in range(20):
        await store.ask(append(mine(index)))  # nobody else waits for it
    assert notes == []
    ref.resolve().gate.set()
    await until(lambda: sum(map(len, notes)) == 20)
    assert [one.index for events in notes for one in events] == list(range(20))
    await store.ask(append(mine(20)))
    await until(lambda: sum(map(len, notes)) == 21)


async def test_a_subscriber_that_takes_nothing_at_all_is_cut_off(system, store, monkeypatch):
    monkeypatch.setattr("oubliette.actors.store.actor.MAX_BEHIND", 5)
    ref = system.spawn(Listener, [], name="listener")
    await store.ask(Subscribe(caller_key=ME, name="listener"))
    ref.tell(_Hold())
    # As many as it takes: of a shared log, several commits may be read and told at a time.
    index = 0
    while ref.is_alive():
        await store.ask(append(mine(index)))
        index += 1
    await store.ask(append(mine(index)))


class Follower(Actor):
    """Counts its notices."""

    mailbox_size = 1

    def __init__(self, notices: list[object]) -> None:
        self.notices = notices
        self.gate = asyncio.Event()

    @handles(LogGrew)
    def _grew(self, message: LogGrew) -> None:
        self.notices.append(message)

    @handles(_Hold)
    async def _hold(self, _: _Hold) -> None:
        await self.gate.wait()


async def test_a_follower_gets_a_notice_of_the_commits_that_concern_it(system, store):
    of_all, of_one = [], []
    system.spawn(Follower, of_all, name="all")
    one = system.spawn(Follower, of_one, name="one")
    await store.ask(FollowLog(name="all"))
    await store.ask(FollowLog(name="one", session_id="s2"))
    await store.ask(append(event(0)))
    await until(lambda: len(of_all) == 1)
    await store.ask(append(event(0, "s2"), event(1, "s2")))
    await until(lambda: len(of_all) == 2)
    await until(lambda: len(of_one) == 1)
    await store.ask(Transact(ops=(operations.PutMeta("a", "b"),)))
    with pytest.raises(Conflict):
        await store.ask(append(event(9)))
    await one.stop()
    await store.ask(append(event(2, "s2")))
    await until(lambda: len(of_all) == 3)
    assert len(of_one) == 1
    assert not system.dead_letters


async def test_a_follower_that_handles_nothing_holds_up_no_commit(system, store):
    notices: list[object] = []
    ref = system.spawn(Follower, notices, name="all")
    await store.ask(FollowLog(name="all"))
    ref.tell(_Hold())
    for index in range(20):
        await store.ask(append(event(index)))
    ref.resolve().gate.set()
    await until(lambda: notices)


# ---------------------------------------------------------------------- a full disk


async def test_a_full_disk_is_told_holds_writes_and_is_over_by_itself(system, store, reader):
    notes: list[object] = []
    system.spawn(Listener, notes, name="listener")
    assert await store.ask(GetStoreState()) == StoreState(state="running")
    await store.ask(Subscribe(caller_key=ME, name="listener"))
    failpoints.activate("store.commit_io=enospc")
    asking = asyncio.ensure_future(store.ask(append(mine(0))))
    while (state := await store.ask(GetStoreState())).state == "running":
        await asyncio.sleep(0.001)
    assert state.state == "paused"
    assert "No space left" in state.reason
    assert not asking.done()
    assert await reader.events("s1") == []
    failpoints.activate("")
    assert len((await asking)[0]) == 1
    await until(lambda: notes)
    (told,) = notes
    assert [one.index for one in told] == [0]
    await store.ask(GetRunningSince())  # answered once it runs again, which it does after this
    assert await store.ask(GetStoreState()) == StoreState(state="running")


async def test_writes_are_refused_with_the_reason_when_the_disk_stays_full(system, database):
    store = system.spawn(StoreActor, database, hold_seconds=0.05)
    failpoints.activate("store.commit_io=enospc")
    with pytest.raises(StorageUnavailable, match="No space left"):
        await store.ask(append(event(0)))
    failpoints.activate("")
    await store.ask(append(event(0)))


# ---------------------------------------------------------------------- life


async def test_stopping_answers_what_was_taken_in_and_ends_the_threads(system, database):
    before = set(threading.enumerate())
    store = system.spawn(StoreActor, database)
    asking = [asyncio.ensure_future(store.ask(append(event(n)))) for n in range(50)]
    await asyncio.sleep(0)
    assert await store.stop()
    answers = await asyncio.gather(*asking)
    assert [stored.index for ((stored,),) in answers] == list(range(50))
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("asyncio_"):
            continue  # the loop's own
        thread.join(5)  # it has said that it is done, and needs a moment to be gone
        assert not thread.is_alive()
    with pytest.raises(ActorDead):
        await store.ask(append(event(50)))


async def test_stopping_with_a_full_disk_refuses_what_waits_within_a_second(system, database):
    store = system.spawn(StoreActor, database)
    failpoints.activate("store.commit_io=enospc")
    asking = asyncio.ensure_future(store.ask(append(event(0))))
    await until(lambda: store.resolve()._state.state == "paused")
    async with asyncio.timeout(1.5):
        assert await store.stop()
    with pytest.raises(StorageUnavailable):
        await asking


async def test_a_writer_that_breaks_is_replaced_by_the_supervisor(system, tmp_path):
    database = Database(tmp_path / "store.db")
    specs = [ChildSpec(name="store", cls=StoreActor, args=(database,))]
    supervisor = system.spawn(Supervisor, specs, name="top")
    store = system.ref("top/store")
    await until(store.is_alive)
    await store.ask(append(event(0)))
    first = store.incarnation
    failpoints.activate("store.before_commit=raise@1")
    with pytest.raises(Exception, match="may or may not be stored"):
        await store.ask(append(event(1)))
    await until(lambda: store.is_alive() and store.incarnation != first)
    ((stored,),) = await store.ask(append(event(1)))
    assert (stored.index, stored.seq) == (1, 2)
    assert supervisor.is_alive()


async def test_an_answer_that_was_lost_after_the_commit_does_not_lose_the_write(system, tmp_path):
    database = Database(tmp_path / "store.db")
    specs = [ChildSpec(name="store", cls=StoreActor, args=(database,))]
    system.spawn(Supervisor, specs, name="top")
    store = system.ref("top/store")
    await until(store.is_alive)
    await store.ask(Transact(ops=()))
    first = store.incarnation
    failpoints.activate("store.after_commit=raise@1")
    lost = append(event(0, source="p:0:0"))
    with pytest.raises(Exception, match="may or may not be stored"):
        await store.ask(lost)
    await until(lambda: store.is_alive() and store.incarnation != first)
    assert await store.ask(lost) == ((),)  # sent again: it is there already
    ((stored,),) = await store.ask(append(event(1)))
    assert stored.seq > 1


@pytest.mark.requires("postgres")
async def test_a_log_that_cannot_be_followed_any_more_ends_the_store(system, postgres_url):
    database = opened(postgres_url)
    store = system.spawn(StoreActor, database, name="store")
    await store.ask(FollowLog(name="nobody"))
    connection = database.connect()
    connection.execute("ALTER TABLE log_order RENAME TO elsewhere")
    connection.execute("NOTIFY oubliette_log")
    database.release(connection)
    await until(lambda: not store.is_alive())
