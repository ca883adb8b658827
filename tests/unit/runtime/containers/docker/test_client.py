"""Calls to an engine: how many at once, what a cancelled one leaves, what errors say."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.runtime.containers.docker.client import CALLS_AT_ONCE, Engine
from oubliette.runtime.containers.engine_errors import EngineMissing, EngineNotFound
from tests.unit.runtime.containers.docker.fake_engine import FakeEngine

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

SECONDS = 30


class Gate:
    """A slow answer: holds its callers until there are as many as there may be."""

    def __init__(self, wanted: int) -> None:
        self.now = self.most = self.all = 0
        self.full = asyncio.Event()
        self.open = asyncio.Event()
        self._wanted = wanted

    async def __call__(self, reader: StreamReader, writer: StreamWriter) -> dict[str, Any]:
        self.now += 1
        self.all += 1
        self.most = max(self.most, self.now)
        if self.now == self._wanted:
            self.full.set()
        await self.open.wait()
        self.now -= 1
        return {"Id": f"{self.all}"}


def look(api: Any) -> Any:
    return api.inspect_container("x")


@pytest.fixture
async def fake(anyio_backend: str) -> AsyncIterator[FakeEngine]:
    made = FakeEngine()
    try:
        yield made
    finally:
        await made.aclose()


@pytest.fixture
async def engine(fake: FakeEngine, short: Path) -> AsyncIterator[Engine]:
    made = Engine("docker", await fake.listen(short / "engine.sock"))
    try:
        yield made
    finally:
        await made.aclose()


async def test_of_a_hundred_calls_sixteen_run_at_once_and_none_fails(
    fake: FakeEngine, engine: Engine
) -> None:
    """The SDK's pools break above 25; the calls above 16 wait, and the loop goes on."""
    gate = fake.answers["/containers/x/json"] = Gate(CALLS_AT_ONCE)
    async with asyncio.timeout(SECONDS):
        calls = [asyncio.create_task(engine.call("look", look)) for _ in range(100)]
        await gate.full.wait()
        waiting = engine._limiter.statistics().tasks_waiting
        assert waiting == 100 - CALLS_AT_ONCE
        assert gate.now == CALLS_AT_ONCE
        gate.open.set()
        answers = await asyncio.gather(*calls)
    assert len(answers) == gate.all == 100
    assert gate.most == CALLS_AT_ONCE
    # One client for all, with one version asked; the first calls do not each make their own.
    assert fake.asked.count("/version") == 1
    # And no more connections than calls at once (one of them looks whether anybody is there).
    assert fake.connections <= CALLS_AT_ONCE + 2


async def test_a_call_that_is_given_up_has_ended_before_the_next_step(
    fake: FakeEngine, engine: Engine
) -> None:
    gate = fake.answers["/containers/x/json"] = Gate(1)
    async with asyncio.timeout(SECONDS):
        call = asyncio.create_task(engine.call("look", look))
        await gate.full.wait()
        call.cancel()
        await asyncio.sleep(0)
        assert not call.done()
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert gate.now == 0


async def test_what_the_engine_does_not_know_is_missing(engine: Engine) -> None:
    with pytest.raises(EngineNotFound, match="no /containers/x/json"):
        await engine.call("look", look)


async def test_nobody_at_home_is_told_with_the_address_and_what_to_do(short: Path) -> None:
    engine = Engine("podman", f"unix://{short}/none.sock")
    with pytest.raises(EngineMissing, match=r"none\.sock") as caught:
        await engine.call("look", look)
    assert "podman" in (caught.value.hint or "")
    with pytest.raises(EngineMissing, match=r"none\.sock"):
        await engine.open(asyncio.Protocol)
    await engine.aclose()


async def test_an_engine_that_went_away_leaves_no_socket_of_a_call_open(short: Path) -> None:
    fake = FakeEngine()
    engine = Engine("docker", await fake.listen(short / "engine.sock"))
    fake.answers["/containers/x/json"] = {"Id": "x"}
    await engine.call("look", look)
    await fake.aclose()
    (short / "engine.sock").unlink()
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(3):
            with pytest.raises(EngineMissing, match=r"engine\.sock"):
                await engine.call("look", look)
        gc.collect()
    assert [str(each.message) for each in left] == []
    await engine.aclose()


async def test_an_address_that_cannot_be_used_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine("docker", "ssh://me@far")
    with pytest.raises(EngineMissing, match="another machine"):
        await engine.call("look", look)
    assert engine.where == "its usual place"
