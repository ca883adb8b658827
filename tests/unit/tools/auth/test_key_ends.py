"""What a key does ends with the key: one rule for all tools, on both transports."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.errors import Unauthenticated
from oubliette.testing.clock import VirtualClock
from oubliette.tools import registry
from oubliette.tools.auth import scopes
from oubliette.tools.registry import call
from tests.unit.tools.toolkit import bench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.tools.spec import CallContext
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio

REFUSED = "invalid or expired API key"
SECONDS = 10.0
"""Until the key expires."""
LONG: dict[str, dict[str, Any]] = {
    "session_events": {"session_id": "", "since_index": 0, "wait_seconds": 100},
    "session_map": {"messages": ["a", "b"]},
    "container_exec": {"command": "sleep 1000"},
    "file_read": {"path": "a"},
    "project_delete": {},
}
"""Tools with an argument each that makes them valid; all but the first are replaced by a wait."""


@pytest.fixture
async def house() -> AsyncIterator[Bench]:
    async with bench(VirtualClock()) as made:
        yield made


class Waits:
    """A handler that waits for ever, and keeps how it ended."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = ""

    async def __call__(self, services: Any, context: Any, params: Any) -> Any:
        self.begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise


def held(monkeypatch: pytest.MonkeyPatch, tool: str) -> Waits:
    waits = Waits()
    replaced = msgspec.structs.replace(registry.TABLE[tool], handler=waits)
    monkeypatch.setitem(registry.TABLE, tool, replaced)
    return waits


async def end(house: Bench, token_id: str, how: str) -> None:
    if how == "revoked":
        await house.keys.revoke(token_id)
    else:
        await house.clock.elapse(SECONDS - 1)
        await house.clock.elapse(1)


async def begun(house: Bench, tool: str, waits: Waits | None) -> None:
    if waits is not None:
        await waits.begun.wait()
    else:
        await house.waited.wait()


@pytest.mark.parametrize("how", ["revoked", "expired"])
@pytest.mark.parametrize("tool", LONG)
async def test_a_call_ends_with_its_key(
    house: Bench, monkeypatch: pytest.MonkeyPatch, tool: str, how: str
) -> None:
    project = await house.project()
    session = await house.session(project, live=True)
    arguments = {**LONG[tool]}
    if "session_id" in arguments:
        arguments["session_id"] = session.id
        await house.turn(session, None)
    else:
        arguments["project_id"] = project.id
    waits = None if tool == "session_events" else held(monkeypatch, tool)
    _, context = await house.key("write", principal="alice", expires_in=SECONDS)
    running = asyncio.ensure_future(call(house.services, context, tool, arguments))
    async with asyncio.timeout(20):
        await begun(house, tool, waits)
        assert not running.done()
        await end(house, context.token_id, how)
        answer = await running
    assert answer.is_error
    assert answer.text == REFUSED
    if waits is not None:
        assert waits.ended == "cancelled"
    spawned = len(house.spawns)
    again = await call(house.services, context, tool, arguments)
    assert (again.is_error, again.text) == (True, REFUSED)
    assert len(house.spawns) == spawned


@pytest.mark.parametrize("how", ["revoked", "its session ends"])
async def test_a_call_on_an_agents_link_ends_with_its_key(
    house: Bench, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    project = await house.project()
    session = await house.session(project, live=True)
    _, creator = await house.key("admin")
    minted = await house.keys.mint(creator, scopes.parse("write"))
    await house.keys.bind(minted.token.id, session.id)
    waits = held(monkeypatch, "container_exec")
    asked = {"project_id": project.id, "command": "sleep 1000"}
    running = asyncio.ensure_future(
        house.agents.call(minted.key, session.id, "container_exec", asked)
    )
    async with asyncio.timeout(20):
        await waits.begun.wait()
        if how == "revoked":
            await house.keys.revoke(minted.token.id)
        else:
            await house.keys.end_session(session.id)
        answer = await running
    assert answer["isError"]
    assert answer["content"] == [{"type": "text", "text": REFUSED}]
    assert waits.ended == "cancelled"


async def test_the_end_of_a_key_ends_no_call_of_another(
    house: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = await house.project()
    waits = held(monkeypatch, "container_exec")
    asked = {"project_id": project.id, "command": "sleep 1000"}
    (_, first), (_, second) = [await house.key("write", principal="alice") for _ in range(2)]
    both = [
        asyncio.ensure_future(call(house.services, each, "container_exec", asked))
        for each in (first, second)
    ]
    async with asyncio.timeout(20):
        await waits.begun.wait()
        await asyncio.sleep(0)
        await house.keys.revoke(first.token_id)
        assert (await both[0]).text == REFUSED
    assert not both[1].done()
    both[1].cancel()
    await asyncio.wait(both)


async def test_the_call_that_revokes_its_own_key_is_carried_out_and_answered(house: Bench) -> None:
    _, context = await house.key("admin", principal="alice")
    asked = {"token_id": context.token_id}
    async with asyncio.timeout(20):
        answer = await call(house.services, context, "token_revoke", asked)
    assert answer.structured == {"token_id": context.token_id, "revoked": True}
    assert (await house.reader.tokens())[-1].revoked_at is not None


async def test_a_key_that_is_revoked_on_another_node_ends_its_calls_here(
    house: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oubliette.runtime.store.operations import RevokeToken

    project = await house.project()
    waits = held(monkeypatch, "container_exec")
    _, context = await house.key("write", principal="alice")
    asked = {"project_id": project.id, "command": "sleep 1000"}
    running = asyncio.ensure_future(call(house.services, context, "container_exec", asked))
    async with asyncio.timeout(20):
        await waits.begun.wait()
        await house.put(RevokeToken(context.token_id, 1.0))
        await house.keys.refresh()
        assert (await running).text == REFUSED


async def test_an_error_of_a_tool_in_time_is_its_own(
    house: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(services: Any, context: CallContext, params: Any) -> Any:
        raise TimeoutError("too late")

    replaced = msgspec.structs.replace(registry.TABLE["project_list"], handler=late)
    monkeypatch.setitem(registry.TABLE, "project_list", replaced)
    _, context = await house.key("write", principal="alice", expires_in=SECONDS)
    answer = await call(house.services, context, "project_list", {})
    assert answer.text.startswith("internal error")


async def test_nothing_is_begun_with_a_key_that_has_ended(house: Bench) -> None:
    _, context = await house.key("write")
    await house.keys.revoke(context.token_id)
    with pytest.raises(Unauthenticated, match=REFUSED):
        async with house.keys.while_good(context.token_id):
            pytest.fail("it was begun")
