"""What a caller lends is checked and made presentable."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.config.schema import CallersConfig
from oubliette.contract.agent_options import ToolDefinition
from oubliette.errors import InvalidParameter
from oubliette.tools.tools_offered_by_caller import normalised

LIMITS = CallersConfig()


def lend(*schemas: Any, caller_id: str = "ant") -> list[dict[str, Any]]:
    tools = tuple(ToolDefinition(name=f"t{n}", input_schema=each) for n, each in enumerate(schemas))
    return [tool.input_schema for tool in normalised(tools, caller_id, LIMITS)]


def refusal(*tools: ToolDefinition, caller_id: str = "ant") -> str:
    with pytest.raises(InvalidParameter) as refused:
        normalised(tools, caller_id, LIMITS, "context.caller_tools")
    return refused.value.message


def test_a_schema_without_a_type_is_one_of_an_object() -> None:
    assert lend({}, {"properties": {"a": {}}}) == [
        {"type": "object"},
        {"properties": {"a": {}}, "type": "object"},
    ]


def test_a_tool_may_come_without_a_schema() -> None:
    tool = msgspec.convert({"name": "t"}, ToolDefinition)
    assert normalised((tool,), "ant", LIMITS)[0].input_schema == {"type": "object"}


@pytest.mark.parametrize("kind", ["string", "array", ["object", "null"], None, 3])
def test_arguments_of_any_other_type_are_refused(kind: Any) -> None:
    text = refusal(ToolDefinition(name="t", input_schema={"type": kind}))
    assert text.startswith('context.caller_tools[0].inputSchema: its "type" must be "object"')


@pytest.mark.parametrize(
    "reference",
    ["https://example.com/s.json", "file:///etc/passwd", "other.json#/a", "", 3, None, "//x/y"],
)
@pytest.mark.parametrize(
    "place",
    [
        lambda part: part,
        lambda part: {"properties": {"a": part}},
        lambda part: {"$defs": {"a": {"items": part}}},
        lambda part: {"anyOf": [{}, part]},
        lambda part: {"patternProperties": {"x": {"not": part}}},
        lambda part: {"prefixItems": [part]},
        lambda part: {"additionalProperties": part},
    ],
)
def test_a_reference_to_another_document_is_refused_wherever_it_stands(
    reference: Any, place: Any
) -> None:
    text = refusal(ToolDefinition(name="t", input_schema=place({"$ref": reference})))
    assert "refers to another document" in text


def test_local_references_stay_and_cannot_become_remote() -> None:
    schema = {
        "$id": "https://example.com/base",
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$id": "https://example.com/x", "type": "object"}},
    }
    assert lend(schema) == [
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}, "type": "object"}
    ]


def test_headers_are_not_for_callers_to_set() -> None:
    schema = {
        "properties": {"a": {"type": "string", "x-mcp-header": "Authorization"}},
        "X-MCP-Header": "b",
    }
    assert lend(schema) == [{"properties": {"a": {"type": "string"}}, "type": "object"}]


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    schema = {"type": "object", "properties": {"$ref": {"type": "string"}, "x-mcp-header": {}}}
    assert lend(schema) == [schema]


def test_data_in_a_schema_is_left_alone() -> None:
    schema = {"type": "object", "default": {"$ref": "http://x"}, "examples": [{"$ref": "http://x"}]}
    assert lend(schema) == [schema]


def test_too_many_tools_are_refused() -> None:
    tools = [ToolDefinition(name=f"t{n}") for n in range(129)]
    assert refusal(*tools) == "context.caller_tools: 129 tools; at most 128 are allowed"


def test_a_schema_that_is_too_large_is_refused() -> None:
    text = refusal(ToolDefinition(name="t", input_schema={"description": "x" * 70_000}))
    assert text.startswith("context.caller_tools[0].inputSchema: 700")


def test_a_name_twice_is_refused() -> None:
    text = refusal(ToolDefinition(name="t"), ToolDefinition(name="t"))
    assert text == "context.caller_tools[1].name: t is there twice"


@pytest.mark.parametrize("name", ["a b", "a/b", "ä", "a\n", "x" * 129])
def test_names_that_agents_clients_refuse_are_refused(name: str) -> None:
    assert refusal(ToolDefinition(name=name)).startswith("context.caller_tools[0].name: ")


@pytest.mark.parametrize(
    ("caller", "tool"),
    [("session", "message"), ("session", "events"), ("context", "write"), ("session", "map")],
)
def test_a_tool_cannot_pose_as_one_of_ours(caller: str, tool: str) -> None:
    assert "is a tool of ours" in refusal(ToolDefinition(name=tool), caller_id=caller)


PARTS = st.recursive(
    st.none() | st.booleans() | st.text(max_size=5) | st.integers(-5, 5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["$ref", "$id", "items", "properties", "anyOf", "not", "a", "$defs", "x-mcp-header"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(st.dictionaries(st.text(max_size=5), PARTS, max_size=4))
def test_any_schema_is_taken_or_refused_and_what_is_taken_stays_taken(schema: Any) -> None:
    try:
        (clean,) = lend(schema)
    except InvalidParameter:
        return
    assert clean["type"] == "object"
    assert lend(clean) == [clean]
