"""The follower of the log for one call: each growth is answered once, and it ends with the store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from oubliette.actors.store.actor import FollowLog
from oubliette.kit import ActorDead
from oubliette.tools.handlers.log_watch import LogWatch, WaitForGrowth

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio


async def test_a_growth_is_answered_once_before_and_after_it_is_asked_for(bench: Bench) -> None:
    session = await bench.session(await bench.project())
    watch = bench.system.spawn(LogWatch, bench.store, name="watch")
    await bench.store.ask(FollowLog(name=watch.name))
    await bench.write(session, text="a")
    assert await watch.ask(WaitForGrowth()) is True
    waiting = asyncio.ensure_future(watch.ask(WaitForGrowth()))
    await bench.write(session, text="b")
    assert await waiting is True


async def test_who_waits_is_told_of_the_end_of_the_stores_actor(bench: Bench) -> None:
    watch = bench.system.spawn(LogWatch, bench.store, name="watch")
    waiting = asyncio.ensure_future(watch.ask(WaitForGrowth()))
    await bench.store.stop()
    with pytest.raises(ActorDead):
        await waiting
