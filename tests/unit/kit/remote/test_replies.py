"""An answer goes back in the reply to its question's call, and passes nothing that came before."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oubliette.kit import Actor, ActorDead, Message, Reply, handles
from oubliette.kit.remote import PeerGone, frames, kinds
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


class Speak(Message, Reply[str]):
    """Say something before the answer, answer, and say something after it."""

    n: int
    before: int
    """Number of messages before."""
    after: int
    """Number of messages after."""
    waits: int
    """Turns of the loop before all of this."""
    to: str
    """Who hears it."""


class Said(Message):
    """Something that was said, or answered."""

    what: str


class Say(Message):
    """Have somebody speak, and hear the answer too."""

    whom: str
    speech: Speak


class Talker(Actor):
    """Speaks to others and hears them; notes what it has said in `said`, to whom."""

    mailbox_size = 100_000

    def __init__(self) -> None:
        self.said: list[str] = []
        self.heard: list[str] = []

    @handles(Speak)
    async def _speak(self, message: Speak) -> None:
        answer = self.defer()
        for _ in range(message.waits):
            await asyncio.sleep(0)
        ear = self.system.ref(message.to)
        for place in range(message.before + message.after + 1):
            what = f"{message.n}.{place}"
            self.said.append(what)
            if place == message.before:
                answer.set(what)
            else:
                ear.tell(Said(what=what))

    @handles(Say)
    def _say(self, message: Say) -> None:
        self.ask_to_self(
            self.system.ref(message.whom),
            message.speech,
            ok=lambda what: Said(what=what),
            err=lambda error: Said(what=type(error).__name__),
            timeout=50,
        )

    @handles(Said)
    def _hear(self, message: Said) -> None:
        self.heard.append(message.what)


class Scene(msgspec.Struct, frozen=True):
    """Who asks, what is said then, and what the network is like."""

    askers: str
    before: int
    after: int
    waits: int
    pause: int
    """Turns of the loop until the next scene."""
    carry: int
    """Turns that a call takes."""
    reply: int
    """Turns that a reply takes."""


Scenes = st.lists(
    st.builds(
        Scene,
        askers=st.sampled_from(["a", "b", "ab"]),
        before=st.integers(0, 3),
        after=st.integers(0, 3),
        waits=st.sampled_from([0, 0, 1, 3, 12]),
        pause=st.integers(0, 9),
        carry=st.sampled_from([0, 0, 1, 5, 20]),
        reply=st.sampled_from([0, 0, 1, 5, 30]),
    ),
    min_size=1,
    max_size=12,
)


async def _talk(scenes: list[Scene], held: float) -> None:
    async with two_nodes(held) as pair, asyncio.timeout(20):
        talkers = {
            "a": pair.a.spawn(Talker, name="talker"),
            "b": pair.b.spawn(Talker, name="talker"),
        }
        for n, scene in enumerate(scenes):
            pair.network.yields, pair.network.reply_yields = scene.carry, scene.reply
            for asker in scene.askers:
                speech = Speak(
                    n=n,
                    before=scene.before,
                    after=scene.after,
                    waits=scene.waits,
                    to=f"{asker}!talker",
                )
                whom = "b!talker" if asker == "a" else "a!talker"
                talkers[asker].tell(Say(whom=whom, speech=speech))
            for _ in range(scene.pause):
                await asyncio.sleep(0)
        for _ in range(20):
            await pair.settle()
        assert inside(talkers["a"]).heard == inside(talkers["b"]).said
        assert inside(talkers["b"]).heard == inside(talkers["a"]).said
        assert pair.a_side.pending == pair.b_side.pending == 0


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(scenes=Scenes, held=st.sampled_from([0.0, 0.0, 0.0, 0.0003]))
def test_whatever_the_network_does_all_is_heard_once_and_in_the_order_in_which_it_was_said(
    scenes: list[Scene], held: float
) -> None:
    asyncio.run(_talk(scenes, held))


@pytest.mark.parametrize("waits", [0, 1, 2, 4])
async def test_a_quick_ask_is_one_call(pair: Pair, waits: int) -> None:
    pair.b.spawn(Talker, name="talker")
    talker = pair.a.ref("b!talker")
    speech = Speak(n=0, before=0, after=0, waits=waits, to="a!nobody")
    await talker.ask(speech)
    before = pair.network.sent
    await talker.ask(speech)
    await talker.send(Said(what="heard"))
    await pair.settle()
    assert pair.network.sent - before == 2


async def test_an_answer_that_comes_a_little_later_needs_no_call_of_its_own(
    no_leaked_tasks,
) -> None:
    async with two_nodes(held=10.0) as pair, asyncio.timeout(5):
        holder = inside(pair.b.spawn(Holder, name="holder"))
        counter = pair.b.spawn(Counter, 7, name="counter")
        await pair.a.ref("b!counter").ask(Get())
        before = pair.network.sent
        slow = asyncio.ensure_future(pair.a.ref("b!holder").ask(Hold()))
        await holder.held.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert not slow.done()
        assert counter.is_alive()
        holder.let_go.set()
        assert await slow == "let go"
        assert pair.network.sent - before == 1


async def test_what_a_node_has_to_say_is_not_held_with_an_answer(no_leaked_tasks) -> None:
    async with two_nodes(held=10.0) as pair, asyncio.timeout(5):
        holder = inside(pair.b.spawn(Holder, name="holder"))
        counter = pair.a.spawn(Counter, name="counter")
        await pair.b.ref("a!counter").ask(Get())
        slow = asyncio.ensure_future(pair.a.ref("b!holder").ask(Hold()))
        await holder.held.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        pair.b.ref("a!counter").tell(Add())
        for _ in range(100):
            await asyncio.sleep(0)
        assert await counter.ask(Get()) == 1
        assert not slow.done()
        holder.let_go.set()
        assert await slow == "let go"


async def test_a_slow_answer_holds_nobody_up(pair: Pair) -> None:
    holder = inside(pair.b.spawn(Holder, name="holder"))
    counter = pair.b.spawn(Counter, 7, name="counter")
    slow = asyncio.ensure_future(pair.a.ref("b!holder").ask(Hold()))
    await holder.held.wait()
    assert await pair.a.ref("b!counter").ask(Get()) == 7
    assert counter.is_alive()
    assert not slow.done()
    holder.let_go.set()
    assert await slow == "let go"


async def test_a_notice_of_an_end_waits_for_the_answer_before_it(pair: Pair) -> None:
    """Its call is faster than the reply with the answer."""
    ref = pair.b.spawn(Counter, 5, name="counter")
    far = pair.a.ref("b!counter")
    watcher = pair.a.spawn(Watcher, name="watcher")
    await watcher.ask(Watch(name="b!counter"))
    await far.ask(Get())
    pair.network.reply_yields = 1000
    ask = asyncio.ensure_future(far.ask(Get()))
    for _ in range(20):
        await asyncio.sleep(0)
    await ref.stop()
    await pair.settle()
    assert await watcher.ask(Downs()) == []
    assert not ask.done()
    assert await ask == 5
    await pair.settle()
    assert [down.reason for down in await watcher.ask(Downs())] == ["shutdown"]


async def test_an_answer_whose_reply_is_lost_is_peer_gone(pair: Pair) -> None:
    counter = pair.b.spawn(Counter, name="counter")
    far = pair.a.ref("b!counter")
    await far.ask(Get())
    pair.network.hold("b", "a")
    ask = asyncio.ensure_future(far.ask(Get()))
    await pair.settle()
    counter.tell(Add())
    pair.network.nodes["a"].told_gone("b", "a guess")
    with pytest.raises(PeerGone):
        await ask
    pair.network.release("b", "a")
    await pair.settle()
    assert await far.ask(Get()) == 1


@pytest.mark.parametrize("turns", range(12))
async def test_a_node_that_ends_in_the_middle_of_an_ask_leaves_nobody_waiting(
    pair: Pair, turns: int
) -> None:
    pair.b.spawn(Talker, name="talker")
    far = pair.a.ref("b!talker")
    speech = Speak(n=4, before=0, after=0, waits=2, to="a!nobody")
    await far.ask(speech)
    ask = asyncio.ensure_future(far.ask(speech, timeout=5))
    for _ in range(turns):
        await asyncio.sleep(0)
    await pair.b.stop()
    pair.network.cut("b")
    (outcome,) = await asyncio.gather(ask, return_exceptions=True)
    assert outcome == "4.0" or isinstance(outcome, ActorDead)


async def test_a_batch_that_comes_again_is_refused(pair: Pair) -> None:
    pair.b.spawn(Counter, name="counter")
    far = pair.a.ref("b!counter")
    assert await far.ask(Get()) == 0
    add = frames.encode(frames.MessageFrame(0, "counter", *kinds.pack_message(Add())))
    again = frames.encode(frames.BatchHeader(1, 1, 1, 1, turn=1))
    await pair.network.inject("a", "b", [again, add])
    assert await far.ask(Get()) == 0


async def test_a_peer_of_which_a_batch_is_missing_is_given_up(pair: Pair) -> None:
    holder = inside(pair.b.spawn(Holder, name="holder"))
    ask = asyncio.ensure_future(pair.a.ref("b!holder").ask(Hold()))
    await holder.held.wait()
    await pair.settle()
    later = frames.encode(frames.BatchHeader(1, 1, 1, 1, turn=9))
    await pair.network.inject("b", "a", [later])
    with pytest.raises(PeerGone, match="a batch of it is missing"):
        await ask
    holder.let_go.set()
    assert await pair.a.ref("b!holder").ask(Get()) == 0
