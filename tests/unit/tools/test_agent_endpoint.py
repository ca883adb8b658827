"""Oubliette's own tools for agents (oubliette-tools Specification)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from oubliette import ids
from oubliette.errors import Forbidden, Unauthenticated
from oubliette.tools.auth import scopes
from oubliette.tools.registry import TABLE

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio

LINK = ids.new_id(ids.SESSION)


async def names(bench: Bench, key: str) -> list[str]:
    return [tool["name"] for tool in await bench.agents.tools(key, LINK)]


async def test_valid_admin_api_key_discovers_all_tools(bench: Bench) -> None:
    """Requirement: Tool Discovery via Socket."""
    key, _ = await bench.key("admin")
    found = await bench.agents.tools(key, LINK)
    http_only = {
        "caller_listen",
        "caller_tool_progress",
        "caller_tool_response",
        "permission_response",
        "port_close",
        "port_open",
        "session_map",
    }
    assert {tool["name"] for tool in found} == set(TABLE) - http_only
    for tool in found:
        assert set(tool) == {"name", "description", "inputSchema"}
        assert tool["inputSchema"]["type"] == "object"


async def test_valid_read_only_api_key_discovers_limited_tools(bench: Bench) -> None:
    """Requirement: Tool Discovery via Socket."""
    key, _ = await bench.key("read")
    found = await names(bench, key)
    assert "project_list" in found
    assert not [name for name in found if TABLE[name].scope != "read"]


async def test_invalid_api_key_fails_discovery(bench: Bench) -> None:
    """Requirement: Tool Discovery via Socket."""
    for key in ("", "oub_xxx", f"oub_{ids.new_id(ids.TOKEN)}_{'a' * 43}"):
        with pytest.raises(Unauthenticated) as refused:
            await bench.agents.tools(key, LINK)
        assert refused.value.jsonrpc_code == -32001
        assert refused.value.message == "invalid or expired API key"


async def test_droid_calls_project_list_with_valid_key(bench: Bench) -> None:
    """Requirement: Tool Execution via Socket."""
    project = await bench.project("here")
    key, _ = await bench.key("read")
    result = await bench.agents.call(key, LINK, "project_list", {})
    assert result["isError"] is False
    (content,) = result["content"]
    assert content["type"] == "text"
    assert json.loads(content["text"]) == result["structuredContent"]
    assert [each["id"] for each in result["structuredContent"]["projects"]] == [project.id]


async def test_droid_calls_project_create_with_write_key(bench: Bench) -> None:
    """Requirement: Tool Execution via Socket."""
    key, _ = await bench.key("write")
    result = await bench.agents.call(key, LINK, "project_create", {"name": "test-project"})
    assert result["structuredContent"]["name"] == "test-project"
    assert (await bench.reader.project_named("test-project")) is not None


async def test_a_session_that_an_agent_starts_joins_no_tree_but_its_own(bench: Bench) -> None:
    session = await bench.session(await bench.project(), live=True)
    key, _ = await bench.key("write")
    arguments = {"project_id": session.project_id, "prompt": "p", "tree": {"id": "t"}}
    result = await bench.agents.call(key, session.id, "session_spawn", arguments)
    assert result["isError"]
    assert "counts in your own tree" in result["content"][0]["text"]
    assert bench.spawns == []


async def test_droid_calls_token_create_with_insufficient_scope(bench: Bench) -> None:
    """Requirement: Tool Execution via Socket."""
    key, _ = await bench.key("write")
    with pytest.raises(Forbidden) as refused:
        await bench.agents.call(key, LINK, "token_create", {"name": "n", "scope": "admin"})
    assert refused.value.jsonrpc_code == -32002
    assert refused.value.message == "tool not allowed for this token scope"


@pytest.mark.parametrize(
    "tool", ["nope", "", "caller_listen", "caller_tool_response", "permission_response"]
)
async def test_what_does_not_exist_at_this_door_is_not_allowed(bench: Bench, tool: str) -> None:
    key, _ = await bench.key("admin")
    with pytest.raises(Forbidden):
        await bench.agents.call(key, LINK, tool, {"caller_id": "ant"})


async def test_tool_call_with_expired_key_fails(bench: Bench) -> None:
    """Requirement: Tool Execution via Socket. Checked on every call, never remembered."""
    key, context = await bench.key("admin")
    assert await names(bench, key)
    await bench.keys.revoke(context.token_id)
    for attempt in (
        bench.agents.tools(key, LINK),
        bench.agents.call(key, LINK, "project_list", {}),
    ):
        with pytest.raises(Unauthenticated):
            await attempt


async def test_a_tools_own_failure_is_a_result(bench: Bench) -> None:
    key, _ = await bench.key("write")
    await bench.agents.call(key, LINK, "project_create", {"name": "a"})
    again = await bench.agents.call(key, LINK, "project_create", {"name": "a"})
    assert again["isError"] is True
    assert again["content"][0]["text"].startswith("project already exists")
    assert "structuredContent" not in again


async def test_a_key_of_a_project_reaches_that_project_alone(bench: Bench) -> None:
    mine, other = await bench.project("mine"), await bench.project("other")
    new = await bench.keys.create(name="k", scope=scopes.parse(f"project:{mine.id}"))
    listed = await bench.agents.call(new.key, LINK, "project_list", {})
    assert [each["id"] for each in listed["structuredContent"]["projects"]] == [mine.id]
    hidden = await bench.agents.call(new.key, LINK, "project_get", {"project_id": other.id})
    assert hidden["isError"] is True
    assert "project_create" not in await names(bench, new.key)


async def test_limits_without_arguments_are_those_of_the_agents_own_tree(bench: Bench) -> None:
    session = await bench.session(await bench.project(), live=True)
    key, _ = await bench.key("read")
    result = await bench.agents.call(key, session.id, "config_limits", {})
    assert result["structuredContent"]["exploration_id"] == session.exploration_id
