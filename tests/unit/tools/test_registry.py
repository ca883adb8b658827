"""The table of tools is the public contract, and each entry can stand on its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette import ids
from oubliette.contract.validation import decode
from oubliette.errors import InvalidParameter, NotFound
from oubliette.kit import ActorDead
from oubliette.tools.registry import TABLE, input_schema, listed, output_schema
from oubliette.tools.spec import Tool

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

SPAWN = (
    "workspace_id create_workspace workspace new_session external_id source context caller_id caller_tools"
    " agent model autonomy api_key_scope api_key_project api_key_ttl_seconds api_key"
    " idempotency_key tree"
)
SPAWNED = (
    "session_id project_id workspace_id workspace_created status spawned resumed last_index turn"
    " warnings branch"
)
PROJECT = (
    "id name description created_at default_workspace_id container_type agent model autonomy"
    " workspace_isolation accept_bare limits remote_url containers repository answers problem"
)
SESSION = (
    "session_id project_id workspace_id agent model autonomy status status_reason isolation"
    " created_at updated_at ended_at turn_count title last_prompt final_response last_index"
    " parent_session_id child_session_ids exploration_id depth caller_id usage waiting forked_from"
    " forked_at forked_at_turn conversation problem"
)
CONTRACT = {
    "project_create": (
        "name* description remote_url repository init_git container_type agent model autonomy"
        " workspace_isolation accept_bare limits mcp_servers answers placement idempotency_key",
        PROJECT,
    ),
    "project_list": ("name_contains limit cursor", "projects next_cursor"),
    "project_get": ("project_id*", PROJECT),
    "project_update": ("project_id* allow_push answers", PROJECT),
    "project_delete": ("project_id* discard", "project_id deleted"),
    "project_options": ("", "agents models container_types runtimes limits scopes"),
    "repository_fetch": ("project_id*", "project_id updated removed"),
    "repository_branches": ("project_id* name_contains limit", "project_id branches more"),
    "container_start": (
        "project_id* workspace_id",
        "project_id container_id state runtime stages",
    ),
    "container_stop": (
        "project_id* workspace_id force",
        "project_id container_id state runtime stages",
    ),
    "container_exec": (
        "project_id* command* workspace_id working_dir timeout_seconds",
        "exit_code stdout stderr truncated timed_out",
    ),
    "container_logs": ("project_id* workspace_id tail", "logs truncated"),
    "container_refresh": ("project_id container_type", "image state log_tail"),
    "container_snapshot": (
        "project_id* workspace_id name",
        "project_id image image_id size_bytes",
    ),
    "image_rebuild": ("container_type*", "image state log_tail"),
    "session_spawn": (f"project_id* prompt* title {SPAWN}", SPAWNED),
    "session_message": (f"message* session_id project_id {SPAWN}", SPAWNED),
    "session_map": (
        f"project_id* messages* max_parallel {SPAWN.replace(' new_session', '')}",
        "results",
    ),
    "session_interrupt": ("session_id*", "session_id status"),
    "session_end": ("session_id* tree", "session_id status living_descendants"),
    "session_get": ("session_id*", SESSION),
    "session_list": (
        "project_id status exploration_id limit cursor text newest_first waiting",
        "sessions next_cursor",
    ),
    "session_events": (
        "session_id* since_index max_events wait_seconds include_children",
        "session_id status last_index events completed failed error final_response"
        " truncated_before more",
    ),
    "event_read": ("session_id* index* offset", "data next_offset total"),
    "session_log": (
        "session_id* limit cursor commits",
        "session_id agent model turns commits next_cursor",
    ),
    "session_diff": (
        "session_id* turn from_turn to_turn format paths ignored cursor",
        "session_id from_snapshot to_snapshot files insertions deletions binary_files changes patch"
        " left_out_count left_out ignored_count next_cursor",
    ),
    "session_compare": (
        "project_id* session_ids* paths",
        "sessions files files_count differing_count",
    ),
    "session_export": (
        "session_id* format turn from_turn to_turn paths ignored cursor",
        "session_id format data size sha256 left_out_count left_out ignored_count next_cursor",
    ),
    "checkpoint": (
        "session_id name",
        "session_id snapshot commit changed files insertions deletions torn",
    ),
    "session_restore": (
        "session_id* turn checkpoint discard",
        "session_id restored kept_as written removed missing_count missing",
    ),
    "session_fork": (
        "session_id* prompt* at_turn count large_files context caller_id caller_tools agent model autonomy"
        " api_key_scope api_key_project api_key_ttl_seconds api_key idempotency_key tree",
        "project_id forked_from forked_at forked_at_turn sessions started",
    ),
    "session_merge": (
        "session_id* into* strategy turn commits message dry_run resolve",
        "session_id into strategy snapshot dry_run merged up_to_date created fast_forward base"
        " before commit commits files insertions deletions conflicts conflicts_count conflict_with"
        " resolving_session_id ignored ignored_count left_out left_out_count",
    ),
    "session_push": (
        "session_id* branch* to",
        "session_id branch to repository pushed up_to_date created before commit merged conflicts"
        " conflicts_count",
    ),
    "session_cleanup": ("project_id max_age_hours", "deleted"),
    "workspace_list": ("project_id* limit cursor", "workspaces next_cursor"),
    "workspace_delete": ("project_id* workspace_id* discard", "workspace_id deleted"),
    "file_list": (
        "project_id* path path_base64 workspace_id limit cursor",
        "kind size modified_at version entries next_cursor",
    ),
    "file_read": (
        "project_id* path path_base64 workspace_id offset length encoding",
        "content encoding offset length next_offset size modified_at executable version",
    ),
    "file_write": (
        "project_id* path path_base64 workspace_id text data folder executable"
        " expected_version upload offset final",
        "created size version",
    ),
    "file_delete": ("project_id* path path_base64 workspace_id recursive", "deleted"),
    "port_open": ("session_id* port*", "session_id port name url url_seconds address closes_at"),
    "port_close": ("session_id* port*", "session_id port closed"),
    "port_list": ("session_id*", "ports"),
    "config_limits": (
        "project_id session_id",
        "limits depth remaining_depth exploration_id",
    ),
    "tree_list": ("project_id limit", "trees more"),
    "tree_get": (
        "session_id* limit cursor",
        "exploration_id sessions live cost_usd limits rows next_cursor",
    ),
    "usage_report": (
        "by since project_id limit",
        "by since rows more total",
    ),
    "token_create": (
        "name* scope* principal expires_in_seconds users",
        "token token_id name scope principal expires_at users",
    ),
    "token_list": ("limit cursor", "tokens next_cursor"),
    "token_revoke": ("token_id*", "token_id revoked"),
    "caller_listen": ("caller_id* caller_tools after observe max_seconds", "events next ended"),
    "caller_tool_progress": ("session_id* request_id* message*", "accepted"),
    "caller_tool_response": ("session_id* request_id* result error", "accepted"),
    "event_list": (
        "after project_id session_id types text max_events wait_seconds",
        "events next more",
    ),
    "permission_list": ("project_id limit", "permissions more"),
    "permission_response": ("session_id* request_id* decision* remember", "accepted"),
}
DEFAULTS = {
    ("container_stop", "force"): False,
    ("container_exec", "timeout_seconds"): 60,
    ("container_logs", "tail"): 1000,
    ("project_create", "init_git"): True,
    ("project_create", "workspace_isolation"): False,
    ("project_list", "limit"): 100,
    ("session_spawn", "create_workspace"): False,
    ("session_spawn", "new_session"): False,
    ("session_end", "tree"): False,
    ("session_list", "limit"): 100,
    ("workspace_list", "limit"): 1000,
    ("token_list", "limit"): 1000,
    ("session_events", "since_index"): -1,
    ("session_events", "max_events"): 500,
    ("session_events", "wait_seconds"): 0,
    ("session_events", "include_children"): False,
    ("event_read", "offset"): 0,
    ("session_cleanup", "max_age_hours"): 24,
    ("file_list", "limit"): 500,
    ("file_read", "offset"): 0,
    ("file_read", "length"): 256 * 1024,
    ("file_write", "folder"): False,
    ("file_write", "offset"): 0,
    ("file_write", "final"): True,
    ("file_delete", "recursive"): False,
    ("caller_listen", "observe"): False,
    ("permission_response", "remember"): "once",
}
EVERY = pytest.mark.parametrize("tool", TABLE.values(), ids=lambda tool: tool.name)


def test_the_table_has_what_the_design_names_and_nothing_else() -> None:
    assert set(TABLE) == set(CONTRACT)


@EVERY
def test_parameters_and_results_are_those_of_the_design(tool: Tool) -> None:
    parameters, results = CONTRACT[tool.name]
    schema = input_schema(tool)
    wanted = parameters.split()
    assert set(schema["properties"]) == {name.rstrip("*") for name in wanted}
    assert set(schema["required"]) == {name[:-1] for name in wanted if name.endswith("*")}
    assert set(output_schema(tool)["properties"]) == set(results.split())


def test_defaults_are_those_of_the_design() -> None:
    for (name, parameter), value in DEFAULTS.items():
        assert input_schema(TABLE[name])["properties"][parameter]["default"] == value


def walk(node: Any) -> Any:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


@EVERY
def test_schemas_are_objects_that_need_nothing_else(tool: Tool) -> None:
    for schema in (input_schema(tool), output_schema(tool)):
        assert schema["type"] == "object"
        assert json.loads(json.dumps(schema)) == schema
        for node in walk(schema):
            assert not {"$ref", "$defs"} & node.keys()
            # A property may have that name: its schema is no text.
            assert not isinstance(node.get("title"), str)


@EVERY
def test_unknown_parameters_are_ruled_out_at_every_level(tool: Tool) -> None:
    for node in walk(input_schema(tool)):
        if "properties" in node:
            assert node["additionalProperties"] is False


@EVERY
def test_every_parameter_says_what_it_is(tool: Tool) -> None:
    for name, part in input_schema(tool)["properties"].items():
        assert part.get("description"), name
    assert 20 < len(tool.description) < 600
    assert "\n" not in tool.description


@EVERY
def test_every_string_and_list_of_parameters_is_bounded(tool: Tool) -> None:
    for name, part in input_schema(tool)["properties"].items():
        kinds = [part, *part.get("anyOf", ())]
        if any(kind.get("type") == "string" and "enum" not in kind for kind in kinds):
            assert any("maxLength" in kind for kind in kinds), name


@EVERY
def test_required_parameters_come_first(tool: Tool) -> None:
    schema = input_schema(tool)
    required = schema["required"]
    assert set(list(schema["properties"])[: len(required)]) == set(required)


def test_reads_say_that_they_change_nothing() -> None:
    for tool in TABLE.values():
        assert tool.read_only == (
            tool.scope == "read" or tool.name in {"project_options", "token_list"}
        )
        assert not (tool.read_only and tool.destructive)


def test_listings_are_in_a_stable_order() -> None:
    from oubliette.tools.auth.scopes import Scope

    first = [tool.name for tool in listed(Scope(level="admin"), "http")]
    assert first == [tool.name for tool in listed(Scope(level="admin"), "http")] == list(TABLE)


# ---------------------------------------------------------------------- bad arguments

A_PROJECT, A_SESSION = "proj_11111111111111111111111111", "gogol_11111111111111111111111111"
GOOD = {
    "command": "true",
    "container_type": "base",
    "project_id": A_PROJECT,
    "session_id": A_SESSION,
    "session_ids": [A_SESSION, A_SESSION],
    "workspace_id": ids.new_uuid(),
    "token_id": "tok_11111111111111111111111111",
    "caller_id": "ant",
    "name": "n",
    "prompt": "p",
    "message": "m",
    "messages": ["m"],
    "scope": "read",
    "index": 0,
    "turn": 1,
    "into": "work",
    "branch": "work",
    "allow_push": True,
    "port": 8000,
    "request_id": "r",
    "decision": "allow",
}
WRONG: dict[str, Any] = {
    "null": None,
    "number": 3.5,
    "true": True,
    "megabyte": "x" * 1_000_000,
    "list": [[], {}],
    "object": {"a": {"b": 1}},
    "deep": json.loads("[" * 200 + "]" * 200),
    "surrogate": "\udfff",
    "nul": "\x00",
}


def bad_calls(tool: Tool) -> Any:
    required = {name: GOOD[name] for name in input_schema(tool)["required"]}
    if required:
        yield "nothing", None, sorted(required)
        yield "empty", {}, sorted(required)
    yield "unknown", {**required, "zzz": 1}, ["zzz"]
    for name in sorted(input_schema(tool)["properties"]):
        for kind, value in WRONG.items():
            yield f"{name}={kind}", {**required, name: value}, [name]


@pytest.mark.anyio
@EVERY
async def test_bad_arguments_get_one_sentence_that_names_the_field(
    bench: Bench, tool: Tool
) -> None:
    refused = 0
    for what, arguments, names in bad_calls(tool):
        try:
            decode(tool.params, arguments, tool.name)
            fits = True  # `null` for what may be left out, `true` for a flag
        except InvalidParameter:
            fits = False
        if fits and tool.streamed:
            continue  # a good call, which waits
        result = await bench.call(tool.name, arguments)
        assert result.code != "error", (what, result.text)
        assert len(result.text) < 1500 or not result.is_error
        assert "Traceback" not in result.text
        if fits:
            continue
        refused += 1
        assert result.code == "invalid_parameter", (what, result.text)
        assert result.structured["error"]["code"] == "invalid_parameter"
        assert any(name in result.text for name in names), (what, result.text)
    assert refused >= 1


@pytest.mark.anyio
async def test_an_unknown_tool_is_not_found(bench: Bench) -> None:
    for name in ("nope", "", "project_create ", "x" * 100_000):
        with pytest.raises(NotFound) as refused:
            await bench.call(name, {})
        assert len(str(refused.value)) < 300


@pytest.mark.anyio
async def test_a_tool_of_another_door_is_not_found(bench: Bench) -> None:
    with pytest.raises(NotFound):
        await bench.call("caller_listen", {"caller_id": "ant"}, transport="socket")


@pytest.mark.anyio
async def test_what_goes_wrong_inside_is_told_without_its_secrets(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.services, "offers", None)  # 'NoneType' has no attribute 'agents'
    result = await bench.call("project_options", {})
    assert result.is_error
    assert result.text == "internal error (hint: the server's log has the details)"


@pytest.mark.anyio
@pytest.mark.parametrize("reason", [None, "the disk is full"])
async def test_an_actor_that_was_restarted_meanwhile_is_told_with_its_reason(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, reason: str | None
) -> None:
    class Restarted:
        def __getattr__(self, name: str) -> object:
            raise ActorDead("callers/x: it ended before it answered", reason=reason)

    monkeypatch.setattr(bench.services, "offers", Restarted())
    result = await bench.call("project_options", {})
    why = f": {reason}" if reason else ""
    assert f"was restarted before it answered{why} (hint: look whether" in result.text


@pytest.mark.anyio
async def test_the_text_of_a_result_is_its_structured_content(bench: Bench) -> None:
    result = await bench.call("project_create", {"name": "é"})
    assert json.loads(result.text) == result.structured
    assert msgspec.json.encode(result.structured)


@pytest.mark.anyio
async def test_scope_is_looked_at_before_the_arguments(bench: Bench) -> None:
    result = await bench.call("token_create", {"zzz": 1}, scope="write")
    assert result.code == "forbidden"
    assert result.text == (
        "tool not allowed for this token scope"
        " (hint: token_create needs the scope admin without a project, this key has write)"
    )


@pytest.mark.anyio
async def test_a_server_that_is_alone_refuses_labels(bench: Bench) -> None:
    asked = {"name": "vision", "placement": {"labels": {"gpu": "yes"}}}
    result = await bench.call("project_create", asked)
    assert result.is_error
    assert "placement.labels: this server is alone" in result.text
    assert (await bench.call("project_create", asked | {"placement": {}})).structured["name"]
