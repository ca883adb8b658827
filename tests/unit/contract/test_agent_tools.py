"""Base tools of agents: one table, from which the client's list and the server's checks come."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oubliette.actors.agent_requests.params import base_params, known_params
from oubliette.contract.agent_tools import AGENT_TOOLS, AgentMapMessage, catalogue
from oubliette.contract.json_schema import object_schema
from oubliette.errors import InvalidParameter
from oubliette.incontainer.client import agent_tools as shipped
from oubliette.incontainer.client.tool_catalog import Catalog
from oubliette.tools.registry import TABLE, input_schema
from tests.product_files import PACKAGE, product_files
from tests.syntax import parse

ROOT = Path(__file__).parents[3]
SESSION = "gogol_" + "0" * 26
FOR_EACH = frozenset({("session_map", "messages")})
"""Parameters that clients and agents both have, with other options inside."""


def refusal(tool: str, arguments: dict[str, Any]) -> InvalidParameter:
    with pytest.raises(InvalidParameter) as refused:
        base_params(AGENT_TOOLS[tool].params, arguments, tool)
    return refused.value


def test_the_file_that_clients_list_is_that_of_the_table() -> None:
    written = (PACKAGE / "incontainer" / "client" / shipped.FILE).read_bytes()
    assert written == catalogue(), (
        "renew it: .venv/bin/python -m oubliette.contract.agent_tools"
        f" > incontainer/client/{shipped.FILE}"
    )


def test_a_client_lists_every_base_tool_before_it_has_met_a_server() -> None:
    listed = Catalog(print, has_context=True).entries()
    assert [entry["name"] for entry in listed] == list(AGENT_TOOLS)
    for entry in listed:
        tool = AGENT_TOOLS[entry["name"]]
        assert entry["description"] == tool.description
        assert set(entry["inputSchema"]["properties"]) == set(tool.params.__struct_fields__)


def test_what_a_model_reads_offers_no_null_and_describes_each_parameter() -> None:
    def walk(node: Any) -> None:
        if isinstance(node, dict):
            assert node.get("type") != "null"
            assert node.get("default", 0) is not None
            for name, part in node.get("properties", {}).items():
                assert part["description"], name
        for part in node.values() if isinstance(node, dict) else node:
            if isinstance(part, dict | list):
                walk(part)

    walk(msgspec.json.decode(catalogue()))


def literal_schemas(file: Path) -> list[int]:
    """Lines with an object schema with parameters of its own, written by hand."""
    found: list[int] = []
    for node in ast.walk(parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict):
            keys = {each.value for each in node.keys if isinstance(each, ast.Constant)}
            if "properties" in keys and keys & {"type", "required"}:
                found.append(node.lineno)
    return found


def test_no_schema_of_a_tool_is_written_by_hand() -> None:
    """All come from the classes of parameters: a second one would be a second declaration.

    `oubliette.testing` is left out: its callers make schemas of their own functions.
    """
    found = {
        file.relative_to(PACKAGE).as_posix(): lines
        for file in product_files()
        if "testing" not in file.relative_to(PACKAGE).parts and (lines := literal_schemas(file))
    }
    assert found == {}


def test_the_search_for_schemas_finds_one(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text('X = {"name": "t", "inputSchema": {"type": "object", "properties": {}}}\n')
    assert literal_schemas(file) == [1]


def test_what_clients_and_agents_both_give_is_declared_once() -> None:
    """Same bounds, same words; only whether it may be left out differs."""
    both = sorted(set(TABLE) & set(AGENT_TOOLS))
    assert both == ["session_events", "session_map", "session_message"]
    for name in both:
        agents = object_schema(AGENT_TOOLS[name].params)["properties"]
        clients = input_schema(TABLE[name])["properties"]
        shared = set(agents) & set(clients)
        assert shared
        for field in shared:
            one, other = bounds(agents[field]), bounds(clients[field])
            if (name, field) in FOR_EACH:
                del one["items"], other["items"]
            assert one == other, (name, field)


def bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter's schema, without null and its default."""
    kinds = [part for part in schema.get("anyOf", ()) if part.get("type") != "null"]
    flat = {**kinds[0], **schema} if len(kinds) == 1 else dict(schema)
    for key in ("anyOf", "default") if len(kinds) == 1 else ("default",):
        flat.pop(key, None)
    return flat


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("session_message", {}, "message: is required; give a string"),
        ("session_message", {"message": 5}, "message: must be a string, not an integer"),
        ("session_message", {"message": ""}, "message: must not be empty"),
        ("session_message", {"message": "\ud800"}, "message: is not valid Unicode"),
        ("session_message", {"message": "x", "session_id": "no"}, "session_id: 'no' is not an id"),
        ("session_message", {"message": "x", "wait": "y"}, "wait: must be true or false"),
        ("session_message", {"message": "x", "zzz": 1}, "'zzz': unknown parameter; session_mes"),
        ("session_events", {}, "session_id: is required; give a string"),
        ("session_events", {"session_id": SESSION, "since_index": -2}, "since_index: must be at"),
        ("session_events", {"session_id": SESSION, "wait_seconds": 601}, "wait_seconds: must be"),
        ("session_events", {"session_id": SESSION, "max_events": 0}, "max_events: must be at lea"),
        ("session_map", {"messages": [{}]}, "messages[0].message: is required; give a string"),
        ("session_map", {"messages": ["x"] * 1001}, "messages: is longer than 1000 entries"),
        ("session_map", {"messages": [{"message": "x", "session_id": 5}]}, "messages[0].session_id"
         ": must be a string, not an integer"),
        ("session_map", {"messages": ["x"], "max_parallel": True}, "max_parallel: must be an int"),
    ],
)  # fmt: skip
def test_what_an_agent_gives_is_refused_by_the_name_of_the_parameter(
    tool: str, arguments: dict[str, Any], said: str
) -> None:
    assert refusal(tool, arguments).message.startswith(said)


def test_an_empty_session_id_is_none_wherever_an_agent_gives_it() -> None:
    given = {"message": "x", "session_id": "", "call_id": "c"}
    message = base_params(AGENT_TOOLS["session_message"].params, given, "session_message")
    assert message.session_id is None  # type: ignore[attr-defined]
    parts = {"messages": [{"message": "x", "session_id": ""}], "max_parallel": None}
    mapped = base_params(AGENT_TOOLS["session_map"].params, parts, "session_map")
    assert mapped.messages == (AgentMapMessage(message="x"),)  # type: ignore[attr-defined]


def test_a_client_of_the_first_form_may_give_more_than_a_tool_takes() -> None:
    given = {"message": "x", "session_id": "", "call_id": "c", "project": "p"}
    kept = known_params("session_message", given)
    assert kept == {"message": "x", "session_id": "", "call_id": "c"}
    other = {"tool": "add", "arguments": {}, "more": 1}
    assert known_params("caller_tool", other) == other
