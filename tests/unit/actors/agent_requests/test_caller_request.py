"""The actor of one open call of a caller's tool: what ends the call when no answer comes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from oubliette.actors.agent_requests.caller_request import CallerRequestActor
from oubliette.actors.callers_served import CallersServed
from oubliette.actors.messages import (
    CallerDisconnected,
    OpenCaller,
    TrackRequest,
    UntrackRequest,
    caller_actor_name,
)
from oubliette.actors.session.messages import CallHeld, RequestSettled, StopRequest
from oubliette.actors.store.actor import GetRunningSince
from oubliette.config.schema import Config
from oubliette.errors import LimitExceeded
from oubliette.kit import Actor, Message, System, handles
from oubliette.records import CallerRequest
from oubliette.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.kit import Deferred

pytestmark = pytest.mark.anyio

CALLER = caller_actor_name("p", "c")


class Told(Actor):
    """Takes the place of the session and of the caller: notes what it is told."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self._seen = seen

    @handles(CallHeld, RequestSettled, TrackRequest, UntrackRequest)
    def _note(self, message: Any) -> None:
        self._seen.append(message)


class Callers(Actor):
    """Opens the caller, or refuses to."""

    def __init__(self, seen: list[Any], refusal: str | None) -> None:
        super().__init__()
        self._seen = seen
        self._refusal = refusal

    @handles(OpenCaller)
    def _open(self, _: OpenCaller) -> str:
        if self._refusal is not None:
            raise LimitExceeded(self._refusal)
        return self.system.spawn(Told, self._seen, name=CALLER).name


class StoreBack(Message):
    """To the Outage: writes go through again."""

    at: float


class Outage(Actor):
    """Takes the place of the store, which has been away until the second of `ends`.

    Without one it is away, until it is told of its end.
    """

    def __init__(self, ends: list[float]) -> None:
        super().__init__()
        self._ends = ends
        self._asked: list[Deferred] = []

    @handles(GetRunningSince)
    def _since(self, _: GetRunningSince) -> float | None:
        if self._ends:
            return self._ends[-1]
        self._asked.append(self.defer())
        return None

    @handles(StoreBack)
    def _back(self, message: StoreBack) -> None:
        self._ends.append(message.at)
        for answer in self._asked:
            answer.set(message.at)


class Scene:
    """One call with a deadline in 300 s, of a session whose server has run for 100 s."""

    def __init__(self, system: System, clock: VirtualClock) -> None:
        self.system, self.clock = system, clock
        self.by_session: list[Any] = []
        self.by_caller: list[Any] = []
        self.session = system.spawn(Told, self.by_session, name="session")
        self.request = CallerRequest(
            id="req_x",
            session_id="gogol_x",
            principal="p",
            caller_id="c",
            tool="add",
            arguments={},
            created_at=clock.time(),
            deadline=clock.time() + 300.0,
            event_index=0,
            call_id=None,
            durable=False,
        )
        self.outages = [0.0]
        """Wall seconds of their ends."""
        self.context: Any = SimpleNamespace(
            config=Config(),
            callers_served=CallersServed(clock.monotonic() - 100.0),
            store=system.spawn(Outage, self.outages, name="store"),
        )

    async def begin(
        self, *, adopted: bool = False, refusal: str | None = None, there: bool = False
    ) -> None:
        if there:
            self.system.spawn(Told, self.by_caller, name=CALLER)
        self.system.spawn(Callers, self.by_caller, refusal, name="callers")
        self.system.spawn(
            CallerRequestActor,
            self.context,
            self.session,
            self.request,
            adopted=adopted,
            name="req",
        )
        await self.clock.elapse(0.0)

    @property
    def tracked(self) -> TrackRequest:
        (message,) = (each for each in self.by_caller if isinstance(each, TrackRequest))
        return message

    @property
    def ended(self) -> bool:
        return self.system.lookup("req") is None


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    clock = VirtualClock()
    async with System("test", clock, roundtrip_messages=True, watchdog=None) as system:
        async with asyncio.timeout(20):
            yield Scene(system, clock)


@pytest.mark.parametrize("there", [True, False])
async def test_the_caller_is_asked_to_watch_over_it_and_is_opened_for_that(
    scene: Scene, there: bool
) -> None:
    await scene.begin(there=there)
    assert (scene.tracked.request_id, scene.tracked.reply_to) == ("req_x", "req")
    assert not scene.ended


async def test_only_a_call_of_an_earlier_server_has_the_whole_grace(scene: Scene) -> None:
    grace = scene.context.config.callers.restart_grace_seconds
    await scene.begin()
    assert scene.tracked.grace == max(0.0, grace - 100.0)


async def test_a_call_that_was_taken_over_waits_for_a_caller_to_come_back(scene: Scene) -> None:
    await scene.begin(adopted=True)
    assert scene.tracked.adopted
    assert scene.tracked.grace == scene.context.config.callers.restart_grace_seconds


@pytest.mark.parametrize("adopted", [True, False])
async def test_its_time_begins_when_callers_can_be_served(scene: Scene, adopted: bool) -> None:
    """A listener that comes as soon as it can is there in time, however long the start took.

    What was known of its caller before, such as a spawn a minute ago, does not make it absent.
    """
    served = scene.context.callers_served = CallersServed()
    await scene.begin(adopted=adopted, there=True)
    await scene.clock.elapse(1000.0)
    assert (scene.by_session, scene.by_caller) == ([], [])
    served.begin(scene.clock.monotonic())
    await scene.clock.elapse(0.0)
    assert scene.tracked.adopted
    assert scene.tracked.grace == scene.context.config.callers.restart_grace_seconds
    timeout = scene.context.config.sessions.caller_tool_timeout_seconds
    await scene.clock.elapse(timeout - 1.0)
    assert scene.by_session == []
    await scene.clock.elapse(1.1)
    assert [settled.outcome for settled in scene.by_session] == ["timeout"]


async def test_at_its_deadline_it_is_settled_once(scene: Scene) -> None:
    await scene.begin()
    await scene.clock.elapse(299.0)
    assert scene.by_session == []
    await scene.clock.elapse(1.1)
    (settled,) = scene.by_session
    assert (settled.request_id, settled.outcome) == ("req_x", "timeout")
    assert "within 300 seconds" in settled.error
    assert scene.ended
    assert isinstance(scene.by_caller[-1], UntrackRequest)


async def test_it_has_its_time_anew_after_nothing_could_be_stored(scene: Scene) -> None:
    """Its caller could not answer, however long that was."""
    await scene.begin(there=True)
    await scene.clock.elapse(290.0)
    scene.outages.append(scene.clock.time())
    await scene.clock.elapse(299.0)
    assert scene.by_session == []
    await scene.clock.elapse(2.0)
    (settled,) = scene.by_session
    assert settled.outcome == "timeout"


async def test_the_agents_client_is_told_again_and_again_to_wait_while_nothing_can_be_stored(
    scene: Scene,
) -> None:
    """It gives up some seconds after the deadline, as a server that says nothing may be gone."""
    scene.outages.clear()
    await scene.begin(there=True)
    await scene.clock.elapse(299.0)
    assert scene.by_session == []
    await scene.clock.elapse(3.0)
    assert scene.by_session == [CallHeld(request_id="req_x")]
    await scene.clock.elapse(600.0)
    assert scene.by_session == [CallHeld(request_id="req_x")] * 3
    scene.system.ref("store").tell(StoreBack(at=scene.clock.time()))
    await scene.clock.elapse(299.0)
    assert len(scene.by_session) == 3
    await scene.clock.elapse(2.0)
    assert scene.by_session[-1].outcome == "timeout"
    assert len(scene.by_session) == 4


async def test_a_caller_that_goes_away_ends_it(scene: Scene) -> None:
    await scene.begin()
    scene.system.ref("req").tell(CallerDisconnected(reason="it left"))
    await scene.clock.elapse(0.0)
    (settled,) = scene.by_session
    assert (settled.outcome, settled.error) == ("caller_gone", "it left")
    assert scene.ended


async def test_a_caller_that_cannot_be_opened_ends_it(scene: Scene) -> None:
    await scene.begin(refusal="too many callers")
    (settled,) = scene.by_session
    assert settled.outcome == "caller_gone"
    assert "too many callers" in settled.error


async def test_once_the_session_has_an_answer_nothing_more_is_settled(scene: Scene) -> None:
    await scene.begin()
    scene.system.ref("req").tell(StopRequest())
    await scene.clock.elapse(400.0)
    assert scene.by_session == []
    assert scene.ended
    assert [type(each) for each in scene.by_caller] == [TrackRequest, UntrackRequest]


async def test_a_deadline_that_is_over_already_settles_it_at_once(scene: Scene) -> None:
    scene.request = msgspec.structs.replace(scene.request, deadline=scene.clock.time() - 5.0)
    await scene.begin()
    await scene.clock.elapse(0.0)
    assert cast("Any", scene.by_session[0]).outcome == "timeout"
