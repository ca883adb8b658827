"""The promises that are the same for an actor of this node and of another one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.kit import (
    Actor,
    ActorDead,
    AskTimeout,
    Message,
    Ref,
    Reply,
    UnhandledMessage,
    handles,
)
from tests.unit.kit.vocabulary import (
    Add,
    Boom,
    Counter,
    Downs,
    Get,
    Hold,
    Holder,
    Odd,
    Unwatch,
    Watch,
    Watcher,
    inside,
)

if TYPE_CHECKING:
    from tests.unit.kit.remote.conftest import Pair

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("where", ["a", "b"])]


class Forward(Message, Reply[int]):
    """Ask the actor of this address without waiting, and note what comes."""

    to: str


class Came(Message):
    """The outcome of a `Forward`."""

    what: str


class Forwarder(Actor):
    """Asks others beside its mailbox."""

    def __init__(self) -> None:
        self.came: list[str] = []

    @handles(Forward)
    def _forward(self, message: Forward) -> int:
        self.ask_to_self(
            self.system.ref(message.to),
            Get(),
            ok=lambda n: Came(what=str(n)),
            err=lambda error: Came(what=type(error).__name__),
            timeout=3,
        )
        return 0

    @handles(Came)
    def _came(self, message: Came) -> None:
        self.came.append(message.what)


def spawned(pair: Pair, where: str, cls: type[Actor], *args: Any) -> tuple[Ref, Any]:
    """An actor of that node: its ref as seen from `a`, and the actor itself."""
    system = pair.a if where == "a" else pair.b
    own = system.spawn(cls, *args, name="it")
    return pair.a.ref(f"{where}!it"), inside(own)


async def test_messages_of_one_sender_are_handled_in_order(pair: Pair, where: str) -> None:
    ref, _ = spawned(pair, where, Counter)
    for n in range(5):
        ref.tell(Add(n=n))
    await ref.send(Add(n=100))
    assert await ref.ask(Get()) == 110


async def test_a_late_answer_is_dropped(pair: Pair, where: str) -> None:
    ref, holder = spawned(pair, where, Holder)
    ask = asyncio.ensure_future(ref.ask(Hold(), timeout=2))
    await holder.held.wait()
    pair.clock.advance(2)
    with pytest.raises(AskTimeout):
        await ask
    holder.let_go.set()
    assert await ref.ask(Get()) == 0


async def test_an_ask_in_flight_when_the_actor_ends_is_actor_dead(pair: Pair, where: str) -> None:
    ref, holder = spawned(pair, where, Holder)
    asks = [asyncio.ensure_future(ref.ask(m)) for m in (Hold(), Get(), Get())]
    await holder.held.wait()
    await pair.settle()
    await ref.kill()
    outcomes = await asyncio.gather(*asks, return_exceptions=True)
    assert [isinstance(each, ActorDead) for each in outcomes] == [True] * 3


async def test_a_message_without_a_handler_is_refused(pair: Pair, where: str) -> None:
    ref, _ = spawned(pair, where, Counter)
    with pytest.raises(UnhandledMessage):
        await ref.ask(Odd())


async def test_a_ref_reaches_the_next_incarnation(pair: Pair, where: str) -> None:
    ref, _ = spawned(pair, where, Counter, 1)
    assert await ref.stop()
    with pytest.raises(ActorDead):
        await ref.ask(Get())
    spawned(pair, where, Counter, 2)
    assert await ref.ask(Get()) == 2


async def test_a_watch_that_is_cancelled_gives_no_notice(pair: Pair, where: str) -> None:
    ref, _ = spawned(pair, where, Counter)
    watcher = pair.a.spawn(Watcher, name="watcher")
    await watcher.ask(Watch(name=f"{where}!it"))
    await watcher.ask(Unwatch(name=f"{where}!it"))
    await ref.stop()
    await pair.settle()
    assert await watcher.ask(Downs()) == []


async def test_the_notice_names_the_error_of_a_tell(pair: Pair, where: str) -> None:
    ref, _ = spawned(pair, where, Counter)
    watcher = pair.a.spawn(Watcher, name="watcher")
    await watcher.ask(Watch(name=f"{where}!it"))
    ref.tell(Boom())
    await pair.settle()
    notices = [(down.reason, down.error) for down in await watcher.ask(Downs())]
    assert notices == [("failed", "ValueError: boom")]


async def test_an_actor_asks_without_waiting(pair: Pair, where: str) -> None:
    spawned(pair, where, Counter, 6)
    forwarder = pair.a.spawn(Forwarder, name="forwarder")
    await forwarder.ask(Forward(to=f"{where}!it"))
    await forwarder.ask(Forward(to=f"{where}!nobody"))
    await pair.settle()
    assert sorted(inside(forwarder).came) == ["6", "ActorDead"]


async def test_a_thread_asks(pair: Pair, where: str) -> None:
    ref, _ = spawned(pair, where, Counter, 6)
    assert await asyncio.to_thread(ref.ask_blocking, Get(), 10) == 6
    await asyncio.to_thread(ref.tell, Add())
    assert await ref.ask(Get()) == 7
