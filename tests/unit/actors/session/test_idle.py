"""End of a session without activity."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from oubliette.actors.session.actor import SessionActor
from oubliette.actors.session.idle_timeout import IdleCheck, IdleTimeout
from oubliette.actors.session.state import SessionMemory
from oubliette.config.schema import Config, SessionsConfig
from oubliette.kit import System
from oubliette.testing.clock import VirtualClock

if TYPE_CHECKING:
    from oubliette.actors.container.messages import ForgetProcess
    from oubliette.actors.session.messages import StdinFrame
    from oubliette.actors.session.session_end import EndOfSession

pytestmark = pytest.mark.anyio

LIMIT = 60.0


class TakenOver(SessionActor):
    """A session after a restart of the server, whose agent has not been reached."""

    def __init__(self, ended: asyncio.Future[str], unit: object = None) -> None:
        context = SimpleNamespace(
            config=Config(sessions=SessionsConfig(idle_timeout_seconds=LIMIT)),
            session_registry=SimpleNamespace(leave=lambda *_: None),
            keys=None,
        )
        super().__init__(cast("Any", context), cast("Any", unit), "ses_1", SessionMemory())
        self.ended = ended

    async def on_start(self) -> None:
        self.writer = cast("Any", SimpleNamespace(record=SimpleNamespace(status="idle")))
        self.active()
        self.after(LIMIT, IdleCheck())

    def finish(self, end: EndOfSession) -> None:
        self.ended.set_result(f"{end.step} {end.outcome} {end.reason}")

    def write(self, frame: StdinFrame) -> None:
        del frame


async def test_a_session_idles_out_though_nothing_ever_happened_to_its_actor() -> None:
    clock = VirtualClock()
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with System(clock=clock) as system:
        system.spawn(TakenOver, ended, name="session")
        await clock.elapse(LIMIT + 1)
        async with asyncio.timeout(5):
            assert await ended == "idled_out timed_out idle for 60 seconds"


class Starting(TakenOver):
    """A session whose first turn waits for a container that takes its time."""

    async def on_start(self) -> None:
        await super().on_start()
        self.writer.record.status = "created"  # type: ignore[misc] - of the namespace above
        self.state.submit("prompt", None, 0.0)


async def test_a_session_is_not_idle_while_its_turn_waits_for_a_slow_start() -> None:
    clock = VirtualClock()
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with System(clock=clock) as system:
        system.spawn(Starting, ended, name="session")
        await clock.elapse(10 * LIMIT)
        assert not ended.done()


class Socket:
    """A SocketActor that answers the second request."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.ended: list[str] = []

    async def ask(self, message: ForgetProcess) -> None:
        if not self.asked.is_set():
            self.asked.set()
            await asyncio.Event().wait()
        self.ended.append(message.process_id)


class Woken(TakenOver):
    """A session that rests, and is woken up while the guest is asked to forget its process."""

    def __init__(self, ended: asyncio.Future[str], link: Socket) -> None:
        super().__init__(ended, SimpleNamespace(socket=link))
        self.resources.process = "proc_1"
        self.resources.released = True

    async def on_start(self) -> None:
        self.pipe_to_self(
            self.resources.release_all("ses_1"), lambda _: IdleCheck(), lambda _: IdleCheck()
        )


async def test_the_guest_forgets_the_process_of_a_session_that_is_woken_up_at_once() -> None:
    link = Socket()
    async with System() as system, asyncio.timeout(5):
        ref = system.spawn(Woken, asyncio.get_running_loop().create_future(), link, name="session")
        await link.asked.wait()
        await ref.stop()
    assert link.ended == ["proc_1"]


def test_activity_puts_the_end_off_by_the_whole_timeout() -> None:
    idle = IdleTimeout(LIMIT)
    idle.active(100.0)
    assert idle.left(130.0, busy=False) == LIMIT - 30.0
    idle.active(130.0)
    assert idle.left(130.0, busy=False) == LIMIT
    assert idle.left(130.0 + LIMIT, busy=False) == 0.0
    assert idle.since(150.0) == 20.0


@pytest.mark.parametrize(("limit", "left"), [(30.0, 30.0), (600.0, 60.0)])
def test_a_session_that_is_busy_is_checked_again_and_does_not_end(
    limit: float, left: float
) -> None:
    idle = IdleTimeout(limit)
    idle.active(0.0)
    assert idle.left(10_000.0, busy=True) == left
    assert idle.left(10_000.0, busy=False) < 0


class Ending(TakenOver):
    """A session whose end was requested while a turn waits behind the running one."""

    async def on_start(self) -> None:
        await super().on_start()
        self.state.agent_attached(0, started=True)
        self.state.submit("never", None, 0.0)
        self.requested_end.reason = "ended"
        self._begin_turn()  # as when the running turn has been interrupted


async def test_a_session_that_is_ending_begins_no_turn() -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with System(clock=VirtualClock()) as system, asyncio.timeout(5):
        ref = system.spawn(Ending, ended, name="session")
        actor = cast("Ending", system.actor("session"))
        while actor.requested_end.reason is None:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert ref.is_alive()
        assert actor.state.turn is None
