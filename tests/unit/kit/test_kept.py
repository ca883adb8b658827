"""What holds an actor that has ended: nothing, on the clock that servers run on."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from oubliette.kit import Actor, Message, Reply, System, handles
from oubliette.kit.retry import ask_with_retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.anyio

LONG = 3600.0
ASKS = 20


class Ask(Message, Reply[int]):
    """Ask a neighbour, and give it this long."""

    neighbour: str


class Later(Message):
    """For much later."""


class AskAside(Message, Reply[None]):
    """Ask a neighbour and go on."""

    neighbour: str


class Answered(Message):
    """What the neighbour said."""

    number: int


class Waiter(Actor):
    """Waits for this and that."""

    def on_start(self) -> None:
        """Set a timer that will not have run when it ends."""
        self.after(LONG, Later())

    @handles(Ask)
    async def _ask(self, message: Ask) -> int:
        return await self.system.ref(message.neighbour).ask(Answer(), timeout=LONG)

    @handles(AskAside)
    def _ask_aside(self, message: AskAside) -> None:
        self.answered = self.defer()
        self.ask_to_self(
            self.system.ref(message.neighbour),
            Answer(),
            lambda number: Answered(number=number),
            lambda _: Answered(number=-1),
        )

    @handles(Answered)
    def _take(self, message: Answered) -> None:
        assert message.number == 7
        self.answered.set(None)

    @handles(Later)
    def _later(self, _: Later) -> None:
        raise AssertionError("too early")


class Answer(Message, Reply[int]):
    """Asks for a number."""


class Neighbour(Actor):
    """Answers when it comes to it."""

    @handles(Answer)
    async def _answer(self, _: Answer) -> int:
        await asyncio.sleep(0)
        return 7


async def test_timers_that_were_cancelled_do_not_keep_their_actor() -> None:
    """The loop keeps a cancelled timer until an earlier one's time has come, or there are many."""
    earlier = asyncio.get_running_loop().call_later(LONG / 2, print)
    async with System() as system:
        system.spawn(Neighbour, name="neighbour")
        ref = system.spawn(Waiter, name="waiter")
        assert await ref.ask(Ask(neighbour="neighbour")) == 7
        actor = weakref.ref(system.actor("waiter"))  # type: ignore[arg-type]
        assert actor() is not None
        await ref.stop()
        await asyncio.sleep(0)  # its task is done by now
        gc.collect()
        assert actor() is None
    earlier.cancel()


@pytest.fixture
def by_hand() -> Iterator[Callable[[], int]]:
    """Collects garbage, and says how many objects it was; nobody else does."""
    gc.collect()
    gc.disable()
    yield gc.collect
    gc.enable()


async def test_an_answer_that_has_come_leaves_nothing_to_the_collector(
    by_hand: Callable[[], int],
) -> None:
    async with System(watchdog=None) as system:
        system.spawn(Neighbour, name="neighbour")
        ref = system.spawn(Waiter, name="waiter")
        await ref.ask(AskAside(neighbour="neighbour"))
        by_hand()
        for _ in range(ASKS):
            await ref.ask(AskAside(neighbour="neighbour"))
        assert by_hand() < ASKS


@pytest.mark.whole
async def test_asking_who_is_there_leaves_nothing_to_the_collector(
    by_hand: Callable[[], int],
) -> None:
    async with System(watchdog=None) as system:
        ref = system.spawn(Neighbour, name="neighbour")
        await ask_with_retry(lambda: ref.ask(Answer()))
        by_hand()
        for _ in range(ASKS):
            assert await ask_with_retry(lambda: ref.ask(Answer())) == 7
        assert by_hand() < ASKS
