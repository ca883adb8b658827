"""The project is taken from the record; who does not own a session cannot converse with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oubliette import ids
from oubliette.tools.registry import TABLE

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio


async def world(bench: Bench) -> dict[str, Any]:
    mine, other = await bench.project("mine"), await bench.project("other")
    session = await bench.session(other, live=True)
    await bench.write(session, text="secret")
    return {
        "mine": mine,
        "other": other,
        "session": session,
        "arguments": {
            "project_id": other.id,
            "session_id": session.id,
            "session_ids": [session.id, (await bench.session(other)).id],
            "workspace_id": other.default_workspace_id,
            "prompt": "p",
            "message": "m",
            "messages": ["m"],
            "command": "true",
            "path": "x",
            "text": "x",
            "index": 0,
            "turn": 1,
            "into": "work",
            "branch": "work",
            "allow_push": True,
            "port": 8000,
            "request_id": "r",
            "decision": "deny",
            "caller_id": "ant",
            "max_seconds": 0,
        },
    }


BOUND = [
    ("project_get", "project_id"),
    ("project_delete", "project_id"),
    ("repository_fetch", "project_id"),
    ("repository_branches", "project_id"),
    ("container_start", "project_id"),
    ("container_stop", "project_id"),
    ("container_exec", "project_id command"),
    ("container_logs", "project_id"),
    ("container_refresh", "project_id"),
    ("container_snapshot", "project_id"),
    ("session_spawn", "project_id prompt"),
    ("session_message", "project_id message"),
    ("session_message", "session_id message"),
    ("session_map", "project_id messages"),
    ("session_interrupt", "session_id"),
    ("session_end", "session_id"),
    ("session_get", "session_id"),
    ("session_list", "project_id"),
    ("session_events", "session_id"),
    ("event_read", "session_id index"),
    ("session_log", "session_id"),
    ("session_diff", "session_id"),
    ("session_compare", "project_id session_ids"),
    ("session_export", "session_id"),
    ("checkpoint", "session_id"),
    ("session_restore", "session_id turn"),
    ("session_fork", "session_id prompt"),
    ("session_merge", "session_id into"),
    ("session_push", "session_id branch"),
    ("session_cleanup", "project_id"),
    ("workspace_list", "project_id"),
    ("workspace_delete", "project_id workspace_id"),
    ("file_list", "project_id"),
    ("file_read", "project_id path"),
    ("file_write", "project_id path text"),
    ("file_delete", "project_id path"),
    ("port_open", "session_id port"),
    ("port_close", "session_id port"),
    ("port_list", "session_id"),
    ("config_limits", "project_id"),
    ("config_limits", "session_id"),
    ("caller_tool_progress", "session_id request_id message"),
    ("caller_tool_response", "session_id request_id"),
    ("permission_response", "session_id request_id decision"),
]


def test_every_tool_that_takes_an_id_of_a_project_or_session_is_tried() -> None:
    named = {name for name, _ in BOUND}
    for tool in TABLE.values():
        if tool.unbound:
            continue  # a key that is bound to a project may not call it at all
        if {"project_id", "session_id"} & set(tool.params.__struct_fields__):
            assert tool.name in named


@pytest.mark.parametrize(("tool", "fields"), BOUND)
async def test_another_project_is_not_there_for_a_bound_key(
    bench: Bench, tool: str, fields: str
) -> None:
    """Not even that it exists is told: the answer is that for an id which never was."""
    there = await world(bench)
    arguments = {name: there["arguments"][name] for name in fields.split()}
    if tool == "session_cleanup":
        arguments["max_age_hours"] = 0
    scope = f"project:{there['mine'].id}"
    refused = await bench.call(tool, arguments, scope=scope)
    assert refused.code == "not_found", refused.text
    never = {
        **arguments,
        **{
            name: ids.new_id(prefix)
            for name, prefix in (("project_id", ids.PROJECT), ("session_id", ids.SESSION))
            if name in arguments
        },
    }
    told = await bench.call(tool, never, scope=scope)
    hidden = refused.text
    for name in ("project_id", "session_id"):
        if name in arguments:
            hidden = hidden.replace(arguments[name], never[name])
    assert told.text == hidden
    assert bench.spawns == []
    assert bench.answers == []


@pytest.mark.parametrize(
    ("tool", "fields"),
    [
        each
        for each in BOUND
        if each[0]
        not in {
            "caller_tool_progress",
            "caller_tool_response",
            "container_refresh",
            "container_snapshot",
            "permission_response",
        }
    ],
)
async def test_the_own_project_is_there_for_a_bound_key(
    bench: Bench, tool: str, fields: str
) -> None:
    there = await world(bench)
    arguments = {name: there["arguments"][name] for name in fields.split()}
    result = await bench.call(tool, arguments, scope=f"project:{there['other'].id}")
    assert result.code in {None, "conflict"}, result.text


async def test_listings_show_a_bound_key_its_project_alone(bench: Bench) -> None:
    there = await world(bench)
    scope = f"project:{there['mine'].id}:ro"
    found = (await bench.call("project_list", {}, scope=scope)).structured
    assert [each["name"] for each in found["projects"]] == ["mine"]
    none = await bench.call("project_list", {"name_contains": "other"}, scope=scope)
    assert none.structured == {"projects": [], "next_cursor": None}
    some = await bench.call("project_list", {"name_contains": "MIN"}, scope=scope)
    assert len(some.structured["projects"]) == 1


async def test_cleaning_up_with_a_bound_key_touches_its_project_alone(bench: Bench) -> None:
    there = await world(bench)
    for project in (there["mine"], there["other"]):
        await bench.session(project, updated_at=1.0)
    scope = f"project:{there['mine'].id}"
    done = await bench.call("session_cleanup", {}, scope=scope)
    assert done.structured == {"deleted": 1}
    assert [project for project, _ in bench.purged] == [there["mine"].id]


@pytest.mark.parametrize(
    "arguments",
    [
        lambda session: ("session_message", {"session_id": session.id, "message": "x"}),
        lambda session: ("caller_tool_response", {"session_id": session.id, "request_id": "r"}),
        lambda session: (
            "permission_response",
            {"session_id": session.id, "request_id": "r", "decision": "allow"},
        ),
    ],
)
async def test_only_the_owner_converses_and_answers(bench: Bench, arguments: Any) -> None:
    there = await world(bench)
    bench.open_requests.add("r")
    tool, given = arguments(there["session"])
    stranger = await bench.call(tool, given, principal="mallory")
    assert stranger.code == "not_found"
    assert bench.answers == []
    assert bench.spawns == []
    owner = await bench.call(tool, given, principal="alice")
    assert not owner.is_error


async def test_whoever_reaches_the_project_sees_and_ends(bench: Bench) -> None:
    there = await world(bench)
    session_id = there["session"].id
    for tool in ("session_get", "session_events", "session_interrupt", "session_end"):
        result = await bench.call(tool, {"session_id": session_id}, principal="mallory")
        assert not result.is_error, result.text


async def test_a_deleted_project_is_gone_for_every_tool(bench: Bench) -> None:
    project = await bench.project()
    await bench.do("project_delete", project_id=project.id)
    for tool, fields in BOUND:
        if fields.startswith("project_id"):
            extra = {
                "prompt": "p",
                "message": "m",
                "messages": ["m"],
                "command": "c",
                "workspace_id": ids.new_uuid(),
                "session_ids": [ids.new_id(ids.SESSION), ids.new_id(ids.SESSION)],
            }
            arguments = {"project_id": project.id} | {
                name: extra[name] for name in fields.split() if name in extra
            }
            assert (await bench.call(tool, arguments)).code == "not_found", tool


async def test_a_session_key_makes_no_tokens(bench: Bench) -> None:
    """They would outlive the session (keys for inner agents can only shrink)."""
    refused = await bench.call(
        "token_create", {"name": "a", "scope": "read"}, transport="socket", minted=True
    )
    assert refused.code == "forbidden"


async def test_a_token_for_a_project_that_is_not_there_is_refused(bench: Bench) -> None:
    project = ids.new_id(ids.PROJECT)
    result = await bench.call("token_create", {"name": "a", "scope": f"project:{project}"})
    assert result.text.startswith(f"project {project} not found")
