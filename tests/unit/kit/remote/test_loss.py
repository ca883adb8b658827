"""A node that dies, comes back or speaks nonsense leaves nobody waiting and nothing twice."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oubliette.kit import Actor, ActorDead, AskTimeout, Message, Ref, Reply, handles
from oubliette.kit.remote import NotSendable, PeerGone, frames, kinds
from oubliette.kit.remote.node_link import SILENT
from tests import selection
from tests.unit.kit.remote.conftest import Pair, two_nodes
from tests.unit.kit.vocabulary import (
    Add,
    Counter,
    Downs,
    Get,
    Hold,
    Holder,
    Watch,
    Watcher,
    inside,
)

pytestmark = pytest.mark.anyio


class Numbered(Message, Reply[int]):
    """The n-th message of its sender."""

    n: int


class Notebook(Actor):
    """Notes the numbers that come, in `pages`; answers every third one late."""

    mailbox_size = 100_000

    def __init__(self, pages: list[int]) -> None:
        self.pages = pages

    @handles(Numbered)
    async def _note(self, message: Numbered) -> int:
        self.pages.append(message.n)
        if message.n % 3 == 0:
            await asyncio.sleep(0)
        return message.n


async def holding(pair: Pair, timeout: float = 30.0) -> asyncio.Future[str]:
    # Without time to end, which it would use up: it is let go by nobody.
    holder = inside(pair.b.spawn(Holder, name="holder", shutdown=0.0))
    ask = asyncio.ensure_future(pair.a.ref("b!holder").ask(Hold(), timeout))
    await holder.held.wait()
    return ask


@pytest.mark.parametrize("told", [True, False])
async def test_an_asker_and_a_watcher_learn_that_the_node_was_started_again(
    pair: Pair, told: bool
) -> None:
    ask = await holding(pair)
    watcher = pair.a.spawn(Watcher, name="watcher")
    await watcher.ask(Watch(name="b!holder"))
    await pair.settle()
    await pair.restart(told=told)
    pair.b.spawn(Counter, 5, name="holder")
    if not told:  # the first contact with the new life tells it
        pair.b.ref("a!watcher").tell(Add())
    with pytest.raises(PeerGone):
        await ask
    await pair.settle()
    assert [(d.name, d.reason) for d in await watcher.ask(Downs())] == [
        ("b!holder", "noconnection")
    ]
    assert await pair.a.ref("b!holder").ask(Get()) == 5


async def test_frames_for_or_from_an_earlier_life_are_refused(pair: Pair) -> None:
    pair.b.spawn(Counter, name="counter")
    assert await pair.a.ref("b!counter").ask(Get()) == 0
    await pair.restart()
    pair.b.spawn(Counter, name="counter")
    assert await pair.a.ref("b!counter").ask(Get()) == 0
    add = frames.encode(frames.MessageFrame(0, "counter", *kinds.pack_message(Add())))
    old = frames.encode(frames.BatchHeader(1, 1, 1, 2))
    await pair.network.inject("b", "a", [old, add])
    meant_for_the_old = frames.encode(frames.BatchHeader(1, 2, 1, 1))
    await pair.network.inject("a", "b", [meant_for_the_old, add])
    await pair.settle()
    assert await pair.a.ref("b!counter").ask(Get()) == 0
    assert pair.a.dead_letter_count == 0


async def test_a_false_report_of_a_death_ends_what_waits_on_both_sides(pair: Pair) -> None:
    ask = await holding(pair)
    watcher = pair.a.spawn(Watcher, name="watcher")
    await watcher.ask(Watch(name="b!holder"))
    await pair.settle()
    pair.network.nodes["b"].told_gone("a", "it looked dead")
    with pytest.raises(PeerGone, match="gave this node up"):
        await ask
    await pair.settle()
    assert [d.reason for d in await watcher.ask(Downs())] == ["noconnection"]
    inside(pair.b.ref("holder")).let_go.set()
    assert await pair.a.ref("b!holder").ask(Get()) == 0


async def test_a_peer_that_never_greets_is_gone_after_its_time(pair: Pair) -> None:
    pair.network.hold("b", "a")
    ask = asyncio.ensure_future(pair.a.ref("b!counter").ask(Get(), timeout=60))
    await pair.settle()
    pair.clock.advance(10)
    with pytest.raises(PeerGone, match="did not answer for 10 s"):
        await ask
    pair.network.release("b", "a")
    await pair.settle()


async def test_an_ask_across_a_silent_network_ends_at_its_deadline(pair: Pair) -> None:
    pair.b.spawn(Counter, name="counter")
    ref = pair.a.ref("b!counter")
    await ref.ask(Get())
    pair.network.hold("b", "a")
    ask = asyncio.ensure_future(ref.ask(Get(), timeout=2))
    await pair.settle()
    pair.clock.advance(2)
    with pytest.raises(AskTimeout):
        await ask
    pair.network.release("b", "a")
    await pair.settle()


async def test_a_system_that_ends_leaves_no_asker_waiting(pair: Pair) -> None:
    ask = await holding(pair)
    await pair.a.stop()
    with pytest.raises(PeerGone, match="this node is ending"):
        await ask
    with pytest.raises(ActorDead):
        await pair.a.ref("b!holder").ask(Get())


async def test_a_garbled_request_is_refused_to_its_asker(pair: Pair) -> None:
    pair.b.spawn(Counter, name="counter")
    ask = asyncio.ensure_future(pair.a.ref("b!counter").ask(Get()))
    header = frames.encode(frames.BatchHeader(1, 1, 1, 1))
    await pair.network.inject("a", "b", [header])
    unknown = frames.MessageFrame(7, "counter", "os.system", b"", answer="answer")
    await pair.network.inject("a", "b", [header, frames.encode(unknown)])
    assert await ask == 0
    with pytest.raises(NotSendable):
        kinds.message_kind("os.system")
    garbled = frames.encode(unknown)[:-1] + b"\xa3abc"
    assert frames.number_of_garbled(garbled) == 7


@pytest.mark.parametrize("kind", [[], {}, None, 1.5, b"m", {"m": 1}, True, "x", ""])
def test_what_is_no_request_has_no_number_whatever_stands_in_its_place(kind: object) -> None:
    assert frames.number_of_garbled(msgspec.msgpack.encode([kind, 7])) is None


@settings(max_examples=selection.examples(60), deadline=None)
@given(
    noise=st.lists(st.binary(max_size=60), max_size=5),
    flips=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200), st.integers(0, 255))),
)
def test_no_bytes_break_the_dispatcher(
    noise: list[bytes], flips: list[tuple[int, int, int]]
) -> None:
    real = [
        frames.MessageFrame(0, "counter", *kinds.pack_message(Add())),
        frames.MessageFrame(9, "counter", *kinds.pack_message(Get()), answer="answer", seconds=3),
        frames.DownFrame(3, "normal"),
    ]
    header = frames.encode(frames.BatchHeader(1, 1, 1, 1))
    batch = [bytearray(frames.encode(frame)) for frame in real]
    for which, where, value in flips:
        batch[which][where % len(batch[which])] = value

    async def run() -> None:
        async with two_nodes() as pair:
            counter = pair.b.spawn(Counter, name="counter")
            await pair.network.inject("a", "b", noise)
            await pair.network.inject("a", "b", [header])
            await pair.network.inject("a", "b", [header, *map(bytes, batch), *noise])
            await pair.settle()
            if counter.is_alive():
                assert isinstance(await counter.ask(Get()), int)

    asyncio.run(run())


async def _history(seed: int) -> None:
    chance = random.Random(seed)
    async with two_nodes() as pair:
        lives: list[list[int]] = []
        outcomes: list[list[object]] = []
        asks: list[asyncio.Task[None]] = []
        watchers: list[Ref] = []

        async def ask(n: int) -> None:
            mine: list[object] = []
            outcomes.append(mine)
            try:
                mine.append(await pair.a.ref("b!book").ask(Numbered(n=n), timeout=5))
            except (ActorDead, AskTimeout) as error:
                mine.append(error)

        def spawn() -> None:
            lives.append([])
            pair.b.spawn(Notebook, lives[-1], name="book")

        spawn()
        for n in range(1, 60):
            pair.network.yields = chance.randrange(4)
            pair.network.reply_yields = chance.choice((0, 0, 1, 20))
            roll = chance.random()
            if roll < 0.5:
                asks.append(asyncio.ensure_future(ask(n)))
                await asyncio.sleep(0)
            elif roll < 0.7:
                pair.a.ref("b!book").tell(Numbered(n=n))
            elif roll < 0.8:
                watcher = pair.a.spawn(Watcher)
                watchers.append(watcher)
                await watcher.ask(Watch(name="b!book"))
            elif roll < 0.87:
                await pair.restart(told=chance.random() < 0.5)
                spawn()
            elif roll < 0.9:
                pair.network.nodes["a"].told_gone("b", "a guess")
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
        await pair.settle()
        await pair.restart()
        await pair.settle()
        pair.clock.advance(6)
        await asyncio.gather(*asks)
        await pair.settle()
        assert all(len(mine) == 1 for mine in outcomes)
        seen = [n for life in lives for n in life]
        assert seen == sorted(set(seen)), "once each, in the order of their sender"
        answered = {mine[0] for mine in outcomes if isinstance(mine[0], int)}
        assert answered <= set(seen)
        for watcher in watchers:
            downs = await watcher.ask(Downs())
            assert len(downs) == 1
            assert downs[0].reason in {"noconnection", "noproc"}


@pytest.mark.parametrize("seed", range(40))
async def test_in_any_history_each_ask_and_watch_has_one_outcome_and_order_holds(
    seed: int, no_leaked_tasks: None
) -> None:
    async with asyncio.timeout(20):
        await _history(seed)


async def test_an_ask_whose_answer_is_lost_in_the_network_ends_though_no_deadline_is_near(pair):
    """Nothing else is sent, so nothing else would find out that the other node is cut off."""
    ask = await holding(pair, timeout=3600.0)
    await pair.settle()
    pair.network.sever("a", "b", seconds=0.0)
    inside(pair.b.ref("holder")).let_go.set()
    await pair.settle()
    assert not ask.done()
    pair.clock.advance(2 * SILENT)
    await pair.settle()
    with pytest.raises(PeerGone, match="did not accept"):
        await ask
    pair.network.heal("a", "b")
    pair.b.spawn(Counter, name="counter")
    assert await pair.a.ref("b!counter").ask(Get()) == 0


async def test_an_ask_waits_as_long_as_it_may_for_a_node_that_is_alive(pair):
    ask = await holding(pair, timeout=3600.0)
    before = pair.network.sent
    pair.clock.advance(10 * SILENT)
    await pair.settle()
    assert 0 < pair.network.sent - before <= 10
    assert not ask.done()
    inside(pair.b.ref("holder")).let_go.set()
    assert await ask == "let go"
