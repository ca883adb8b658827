"""`session_map` of callers, where its sessions find no room."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.errors import LimitExceeded
from oubliette.tools.handlers import session_map
from oubliette.tools.registry import call

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio


async def test_messages_that_find_no_room_together_are_all_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is left to wait for the other, none of whose sessions was started."""
    second_asked = asyncio.Event()
    asked: list[str] = []

    async def full(_services: Any, _context: Any, _params: Any, _id: str, prompt: str, **_: Any):
        asked.append(prompt)
        if prompt == "b":
            second_asked.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        else:
            await second_asked.wait()
        raise LimitExceeded("max_agents_at_once: 2 agents live already")

    monkeypatch.setattr(session_map, "spawn", full)
    project = await bench.project()
    async with asyncio.timeout(5):
        answer = await bench.do("session_map", project_id=project.id, messages=["a", "b"])
    assert [each["status"] for each in answer["results"]] == ["refused", "refused"]
    assert all("max_agents_at_once" in each["error"] for each in answer["results"])
    assert sorted(set(asked)) == ["a", "b"]


async def test_no_agent_is_started_for_a_key_that_has_ended_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, context = await bench.key("write")
    project = await bench.project()
    real = session_map.spawn

    async def then_revoked(*args: Any, **options: Any) -> Any:
        spawned = await real(*args, **options)
        await bench.keys.revoke(context.token_id)
        return spawned

    monkeypatch.setattr(session_map, "spawn", then_revoked)
    messages = {"messages": ["a", "b", "c"], "max_parallel": 1}
    given = {"project_id": project.id, "api_key_scope": "read"}
    async with asyncio.timeout(5):
        answer = await call(bench.services, context, "session_map", given | messages)
    assert (answer.is_error, answer.code) == (True, "unauthenticated"), answer.text
    assert [each.prompt for each in bench.spawns] == ["a"]
    # One whose call was on its way when it ended.
    answer = await call(bench.services, context, "session_spawn", given | {"prompt": "d"})
    assert answer.code == "unauthenticated"
    assert [each.prompt for each in bench.spawns] == ["a"]
