"""The actor of one open call of a caller's tool: what ends the call when no answer comes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from oubliette.actors.agent_requests.caller_request import CallerRequestActor
from oubliette.actors.messages import (
    CallerDisconnected,
    OpenCaller,
    TrackRequest,
    UntrackRequest,
    caller_actor_name,
)
from oubliette.actors.session.messages import RequestOver, RequestSettled
from oubliette.config.schema import Config
from oubliette.errors import LimitExceeded
from oubliette.kit import Actor, System, handles
from oubliette.records import CallerRequest
from oubliette.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

CALLER = caller_actor_name("p", "c")


class Told(Actor):
    """Takes the place of the session and of the caller: notes what it is told."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self._seen = seen

    @handles(RequestSettled, TrackRequest, UntrackRequest)
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
        self.context: Any = SimpleNamespace(config=Config(), started=clock.monotonic() - 100.0)

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
    scene.system.ref("req").tell(RequestOver())
    await scene.clock.elapse(400.0)
    assert scene.by_session == []
    assert scene.ended
    assert [type(each) for each in scene.by_caller] == [TrackRequest, UntrackRequest]


async def test_a_deadline_that_is_over_already_settles_it_at_once(scene: Scene) -> None:
    scene.request = msgspec.structs.replace(scene.request, deadline=scene.clock.time() - 5.0)
    await scene.begin()
    await scene.clock.elapse(0.0)
    assert cast("Any", scene.by_session[0]).outcome == "timeout"
