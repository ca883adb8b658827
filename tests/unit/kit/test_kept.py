"""What holds an actor that has ended: nothing, on the clock that servers run on."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from oubliette.kit import Actor, Message, Reply, System, handles

pytestmark = pytest.mark.anyio

LONG = 3600.0


class Ask(Message, Reply[int]):
    """Ask a neighbour, and give it this long."""

    neighbour: str


class Later(Message):
    """For much later."""


class Waiter(Actor):
    """Waits for this and that."""

    def on_start(self) -> None:
        """Set a timer that will not have run when it ends."""
        self.after(LONG, Later())

    @handles(Ask)
    async def _ask(self, message: Ask) -> int:
        return await self.system.ref(message.neighbour).ask(Answer(), timeout=LONG)

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
