"""The verbs of a ref keep their promises for an actor of another node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from oubliette.errors import InvalidParameter, NotFound
from oubliette.kit import (
    Actor,
    ActorDead,
    AskTimeout,
    Deferred,
    LocalMessage,
    MailboxFull,
    Message,
    Reply,
    UnhandledMessage,
    handles,
    tracing,
)
from oubliette.kit.remote import NotSendable, PeerGone, RemoteFailure
from tests.unit.kit.remote.conftest import Pair
from tests.unit.kit.vocabulary import (
    Add,
    Boom,
    Counter,
    Downs,
    Get,
    Hold,
    Holder,
    Odd,
    Watch,
    Watcher,
    inside,
)

pytestmark = pytest.mark.anyio


class Open(Message, Reply[Path]):
    """Answered with the path that came."""

    path: Path


class Later(Message, Reply[int]):
    """Answered when the test says so."""


class Refuse(Message, Reply[int]):
    """Refused with one of our errors."""


class Live(Message, Reply[Any]):
    """Answered with what cannot be sent."""


class Here(LocalMessage):
    """Never leaves its process."""


class Circle(Message, Reply[int]):
    """Ask the actor of this address the same, or answer 1."""

    of: str


class Desk(Actor):
    """Defers, refuses, tells who asked."""

    mailbox_size = 2

    def __init__(self) -> None:
        self.deferred: list[Deferred] = []
        self.seen: list[Any] = []
        self.came = asyncio.Event()

    @handles(Open)
    def _open(self, message: Open) -> Path:
        self.seen.append((self.envelope.sender, self.envelope.trace, self.envelope.deadline))
        return message.path

    @handles(Later)
    def _later(self, _: Later) -> None:
        self.deferred.append(self.defer())
        self.came.set()

    @handles(Refuse)
    def _refuse(self, _: Refuse) -> int:
        raise NotFound("no such thing", hint="look elsewhere")

    @handles(Live)
    def _live(self, _: Live) -> Any:
        return asyncio.Event()

    @handles(Circle)
    async def _circle(self, message: Circle) -> int:
        back = "a!desk" if message.of == "b!desk" else "b!desk"
        return await self.system.ref(message.of).ask(Circle(of=back), timeout=5)


async def test_an_ask_is_answered_by_an_actor_of_another_node(pair: Pair) -> None:
    pair.b.spawn(Counter, 3, name="counter")
    ref = pair.a.ref("b!counter")
    ref.tell(Add(n=4))
    assert await ref.ask(Get()) == 7


async def test_types_and_the_trace_cross_and_the_sender_has_an_address(pair: Pair) -> None:
    desk = inside(pair.b.spawn(Desk, name="desk"))
    with tracing({"traceparent": "x"}):
        answer = await pair.a.ref("b!desk").ask(Open(path=Path("/x")), timeout=9)
    assert answer == Path("/x")
    assert desk.seen == [(None, {"traceparent": "x"}, pair.clock.monotonic() + 9)]


async def test_the_address_of_the_own_node_is_the_local_ref(pair: Pair) -> None:
    local = pair.a.spawn(Counter, name="counter")
    assert pair.a.ref("a!counter") is local


@pytest.mark.parametrize("address", ["!x", "b!", "-b!x", "b c!x", "b\n!x", "x" * 64 + "!x"])
async def test_an_address_with_a_bad_node_is_refused_by_name(pair: Pair, address: str) -> None:
    with pytest.raises(InvalidParameter):
        pair.a.ref(address)


async def test_an_unknown_node_is_actor_dead_with_its_name(pair: Pair) -> None:
    with pytest.raises(PeerGone, match="node nowhere cannot be reached: no such node"):
        await pair.a.ref("nowhere!x").ask(Get())
    assert not pair.a.ref("nowhere!x").is_alive()
    pair.a.ref("nowhere!x").tell(Add())
    await pair.settle()
    assert pair.a.dead_letters[-1].to == "nowhere!x"


async def test_an_actor_that_is_not_there_is_actor_dead_or_a_dead_letter_there(pair: Pair) -> None:
    ref = pair.a.ref("b!nobody")
    with pytest.raises(ActorDead):
        await ref.ask(Get())
    with pytest.raises(ActorDead):
        await ref.send(Add())
    ref.tell(Add())
    await pair.settle()
    assert [letter.to for letter in pair.b.dead_letters] == ["nobody"]


async def test_our_errors_cross_with_their_type_and_others_as_remote_failure(pair: Pair) -> None:
    pair.b.spawn(Desk, name="desk")
    pair.b.spawn(Counter, name="counter")
    with pytest.raises(NotFound) as refused:
        await pair.a.ref("b!desk").ask(Refuse())
    assert (refused.value.message, refused.value.hint) == ("no such thing", "look elsewhere")
    with pytest.raises(NotSendable):
        await pair.a.ref("b!counter").ask(Boom(text="\ud800"))
    with pytest.raises(RemoteFailure, match="boom") as failed:
        await pair.a.ref("b!counter").ask(Boom())
    assert failed.value.kind == "ValueError"
    with pytest.raises(UnhandledMessage):
        await pair.a.ref("b!counter").ask(Odd())


async def test_what_cannot_leave_its_process_is_refused(pair: Pair) -> None:
    pair.b.spawn(Desk, name="desk")
    ref = pair.a.ref("b!desk")
    for verb in (ref.ask, ref.send):
        with pytest.raises(NotSendable):
            await verb(Here())
    with pytest.raises(TypeError):
        ref.tell(Here())
    with pytest.raises(NotSendable, match="the answer, Event, cannot be sent"):
        await ref.ask(Live())


async def test_an_ask_ends_at_its_deadline_and_the_handler_learns_it(pair: Pair) -> None:
    desk = inside(pair.b.spawn(Desk, name="desk"))
    ask = asyncio.ensure_future(pair.a.ref("b!desk").ask(Later(), timeout=3))
    await desk.came.wait()
    assert not desk.deferred[0].done
    pair.clock.advance(3)
    with pytest.raises(AskTimeout, match="b!desk did not answer Later within 3 s"):
        await ask
    await pair.settle()
    assert desk.deferred[0].done
    assert pair.a_side.pending == pair.b_side.pending == 0


async def test_a_cancelled_asker_is_told_to_the_peer(pair: Pair) -> None:
    desk = inside(pair.b.spawn(Desk, name="desk"))
    ask = asyncio.ensure_future(pair.a.ref("b!desk").ask(Later()))
    await desk.came.wait()
    ask.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ask
    await pair.settle()
    assert desk.deferred[0].done
    assert not desk.deferred[0].set(1)


async def test_a_deferred_answer_crosses(pair: Pair) -> None:
    desk = inside(pair.b.spawn(Desk, name="desk"))
    ask = asyncio.ensure_future(pair.a.ref("b!desk").ask(Later()))
    await desk.came.wait()
    assert desk.deferred[0].set(8)
    assert await ask == 8


async def test_an_actor_that_ends_before_it_answers_is_actor_dead(pair: Pair) -> None:
    ref = pair.b.spawn(Desk, name="desk")
    desk = inside(ref)
    ask = asyncio.ensure_future(pair.a.ref("b!desk").ask(Later()))
    await desk.came.wait()
    await ref.kill()
    with pytest.raises(ActorDead):
        await ask


async def test_send_of_a_question_waits_for_room_alone(pair: Pair) -> None:
    counter = pair.b.spawn(Counter, name="counter")
    await pair.a.ref("b!counter").send(Get())
    assert await counter.ask(Get()) == 0


async def test_send_waits_for_room_and_a_tell_without_room_is_a_dead_letter(pair: Pair) -> None:
    class Small(Holder):
        mailbox_size = 1

    holder = inside(pair.b.spawn(Small, name="holder"))
    ref = pair.a.ref("b!holder")
    held = asyncio.ensure_future(ref.ask(Hold()))
    await holder.held.wait()
    await ref.send(Add())
    waits = asyncio.ensure_future(ref.send(Add()))
    await pair.settle()
    assert not waits.done()
    ref.tell(Add())
    await pair.settle()
    assert [letter.why for letter in pair.b.dead_letters] == [
        "holder: its mailbox holds 1 messages"
    ]
    late = asyncio.ensure_future(ref.send(Add(n=100), timeout=2))
    await pair.settle()
    pair.clock.advance(2)
    with pytest.raises(AskTimeout):
        await late
    await pair.settle()
    holder.let_go.set()
    await waits
    assert await held == "let go"
    assert await ref.ask(Get()) == 2


async def test_a_tell_is_refused_when_too_much_waits_for_the_node(pair: Pair) -> None:
    pair.b.spawn(Counter, name="counter")
    ref = pair.a.ref("b!counter")
    with pytest.raises(MailboxFull):
        for _ in range(10_001):
            ref.tell(Add())
    assert pair.a_side.pending == 10_000
    await pair.settle()


async def test_stop_and_kill_end_an_actor_elsewhere(pair: Pair) -> None:
    notes: list[Any] = []
    pair.b.spawn(Counter, 0, notes, name="counter")
    ref = pair.a.ref("b!counter")
    assert await ref.stop()
    assert notes[-1][2] == "shutdown"
    assert await ref.stop()  # nothing to do
    holder = inside(pair.b.spawn(Holder, notes, name="counter"))
    ask = asyncio.ensure_future(ref.ask(Hold()))
    await holder.held.wait()
    await ref.kill()
    assert notes[-1][2] == "killed"
    with pytest.raises(ActorDead):
        await ask
    with pytest.raises(PeerGone):
        await pair.a.ref("nowhere!x").stop()


async def test_a_circle_across_nodes_ends_at_the_deadline(pair: Pair) -> None:
    # Without time to end: each still waits for the other when the test is over.
    pair.a.spawn(Desk, name="desk", shutdown=0.0)
    pair.b.spawn(Desk, name="desk", shutdown=0.0)
    ask = asyncio.ensure_future(pair.a.ref("b!desk").ask(Circle(of="a!desk"), timeout=4))
    await pair.settle()
    pair.clock.advance(5)
    with pytest.raises(AskTimeout):
        await ask
    await pair.settle()


async def test_a_watcher_has_one_notice_with_the_reason(pair: Pair) -> None:
    for name in ("one", "two"):
        pair.b.spawn(Counter, name=name)
    watcher = pair.a.spawn(Watcher, name="watcher")
    for name in ("b!one", "b!one", "b!two", "b!nobody"):
        await watcher.ask(Watch(name=name))
    await pair.settle()
    await pair.a.ref("b!one").stop()
    pair.b.ref("two").tell(Boom())
    await pair.settle()
    downs = {(down.name, down.reason, down.error) for down in await watcher.ask(Downs())}
    assert downs == {
        ("b!one", "shutdown", None),
        ("b!two", "failed", "ValueError: boom"),
        ("b!nobody", "noproc", None),
    }
    assert len(await watcher.ask(Downs())) == 3


async def test_the_watch_of_a_watcher_that_ends_is_cancelled(pair: Pair) -> None:
    pair.b.spawn(Counter, name="one")
    watcher = pair.a.spawn(Watcher, name="watcher")
    await watcher.ask(Watch(name="b!one"))
    await pair.settle()
    assert pair.b_side.pending == 1
    await watcher.stop()
    await pair.settle()
    assert pair.a_side.pending == pair.b_side.pending == 0
