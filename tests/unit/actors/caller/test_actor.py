"""The actor of one caller: who waits for it, and who is told that it is away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oubliette.actors.caller.actor import CallerActor
from oubliette.actors.caller.memory import CallerMemory
from oubliette.actors.messages import CallerSeen, TrackRequest, UntrackRequest

if TYPE_CHECKING:
    from oubliette.kit import Ref
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio

REQUEST = TrackRequest(request_id="req_x", session_id="gogol_x", reply_to="request")


def begin(world: World) -> tuple[Ref, list[Any]]:
    """Start the caller; the second is what its request is told."""
    told = world.record("request")
    caller = world.system.spawn(
        CallerActor,
        world.store,
        world.reader,
        world.config.callers,
        principal="alice",
        caller_id="c",
        memory=CallerMemory(),
        name="callers/alice/c",
    )
    return caller, told


async def test_a_request_to_a_caller_that_is_not_there_is_told_so(world: World) -> None:
    caller, told = begin(world)
    caller.tell(REQUEST)
    await world.until(lambda: told)
    assert [type(each).__name__ for each in told] == ["CallerDisconnected"]


async def test_a_caller_that_was_seen_counts_as_there_until_it_is_silent_for_long(
    world: World,
) -> None:
    caller, told = begin(world)
    caller.tell(CallerSeen())
    caller.tell(REQUEST)
    grace = world.config.callers.poll_grace_seconds
    await world.settle(grace - 1.0)
    assert told == []
    await world.settle(2.0)
    assert [type(each).__name__ for each in told] == ["CallerDisconnected"]


async def test_a_request_that_is_settled_is_told_nothing_more(world: World) -> None:
    caller, told = begin(world)
    caller.tell(CallerSeen())
    caller.tell(REQUEST)
    caller.tell(UntrackRequest(request_id="req_x"))
    await world.settle(world.config.callers.poll_grace_seconds * 2)
    assert told == []
