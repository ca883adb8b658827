"""The client's catalog: names, clashes, schemas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.incontainer.client.tool_catalog import (
    Catalog,
    object_schema,
    oubliette_success,
    success,
)

BASE = ["session_message", "session_map", "session_events"]


def names(catalog):
    return [entry["name"] for entry in catalog.entries()]


def test_base_tools_win_a_clash_then_oubliettes_then_the_callers_first():
    logged = []
    catalog = Catalog(logged.append)
    catalog.configure_oubliette([{"name": "ping"}, {"name": "ping"}])
    catalog.configure_caller(
        {
            "caller_id": "session",
            "tools": [{"name": "message"}, {"name": "x"}, {"name": "x", "description": "second"}],
        }
    )
    assert names(catalog) == [*BASE, "oubliette_ping", "session_x"]
    tool = catalog.find("session_x")
    assert tool is not None
    assert tool.entry["description"] == "Provided by session."
    assert catalog.find("session_message").kind == "base"
    assert sum("session_message" in line for line in logged) == 1
    catalog.configure_caller({"caller_id": "oubliette", "tools": [{"name": "ping"}]})
    assert catalog.find("oubliette_ping").kind == "oubliette"


def test_names_are_passed_through_as_given_and_called_by_their_own_name():
    catalog = Catalog(print)
    catalog.configure_caller({"caller_id": "a-b_c", "tools": [{"name": "Tool.With/Odd é name"}]})
    assert names(catalog)[3:] == ["a-b_c_Tool.With/Odd é name"]
    assert catalog.find("a-b_c_Tool.With/Odd é name").remote_name == "Tool.With/Odd é name"


def test_a_caller_s_tool_is_found_by_its_short_name_unless_another_tool_has_it():
    catalog = Catalog(print)
    tools = [{"name": "find"}, {"name": "session_map"}, {"name": "find", "description": "second"}]
    catalog.configure_caller({"caller_id": "shop", "tools": tools})
    assert catalog.find("find") is catalog.find("shop_find")
    assert catalog.find("session_map").kind == "base"
    catalog.configure_caller({"caller_id": "shop", "tools": []})
    assert catalog.find("find") is None


@pytest.mark.parametrize("caller_id", ["", None, 5])
def test_tools_of_a_nameless_caller_have_a_prefix_all_the_same(caller_id):
    catalog = Catalog(print)
    catalog.configure_caller({"caller_id": caller_id, "tools": [{"name": "x"}]})
    assert names(catalog) == [*BASE, "caller_x"]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (None, {"type": "object"}),
        ({}, {"type": "object"}),
        ("x", {"type": "object"}),
        ({"type": ["object"]}, {"type": "object"}),
        ({"type": "string"}, {"type": "object"}),
        ({"properties": None, "required": None, "$schema": 5}, {"type": "object"}),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
                "x-k": {"a": [1]},
                "$defs": {},
            },
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
                "x-k": {"a": [1]},
                "$defs": {},
            },
        ),
    ],
)
def test_a_schema_gets_an_object_root_and_keeps_the_rest(schema, expected):
    assert object_schema(schema) == expected


@pytest.mark.parametrize(
    ("given_seconds", "expected"),
    [
        (5, 5.0),
        (0.5, 0.5),
        (0, 60.0),
        (-1, 60.0),
        ("9", 60.0),
        (None, 60.0),
        (float("inf"), 86400.0),
        (float("nan"), 60.0),
        (10**9, 86400.0),
        (10**400, 86400.0),
    ],
)
def test_the_call_timeout_is_taken_if_it_is_one(given_seconds, expected):
    catalog = Catalog(print)
    catalog.configure_caller({"caller_id": "a", "tools": [], "call_timeout_seconds": given_seconds})
    assert catalog.call_timeout_seconds == expected


def test_a_configuration_tells_whether_it_changed_what_is_seen():
    catalog = Catalog(print)
    config = {"caller_id": "a", "tools": [{"name": "x", "inputSchema": {}}]}
    assert catalog.configure_caller(config) is True
    assert catalog.configure_caller({**config, "call_timeout_seconds": 5}) is False
    assert catalog.configure_caller({**config, "caller_id": "b"}) is True
    assert catalog.configure_caller({"caller_id": "b"}) is True
    assert catalog.configure_caller({"caller_id": ""}) is False


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "tools", "inputSchema", "type", "content", "text"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(JSON, JSON)
def test_any_configuration_is_survived_and_every_entry_is_well_formed(caller_id, tools):
    catalog = Catalog(lambda _line: None)
    catalog.configure_caller({"caller_id": caller_id, "tools": tools})
    catalog.configure_oubliette(tools)
    for entry in catalog.entries():
        assert entry["name"]
        assert entry["description"]
        assert entry["inputSchema"]["type"] == "object"
    assert len(set(names(catalog))) == len(names(catalog))


@given(JSON)
def test_any_result_of_an_oubliette_tool_becomes_a_tool_result(result):
    shown = oubliette_success(result)
    assert isinstance(shown["isError"], bool)
    assert all(isinstance(block["type"], str) for block in shown["content"])


def test_a_string_is_shown_as_it_is_and_an_object_twice():
    assert success("a\nb")["content"] == [{"type": "text", "text": "a\nb"}]
    assert success({"a": 1})["structuredContent"] == {"a": 1}
