"""Bad arguments are refused in one sentence that names the field and the remedy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.contract.agent_tools import AGENT_TOOLS
from oubliette.contract.field_types import FORMS
from oubliette.contract.validation import decode, schema_of
from oubliette.errors import InvalidParameter
from oubliette.json_values import MAX_DEPTH, check_values
from oubliette.tools.registry import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT, SESSION = "proj_11111111111111111111111111", "gogol_11111111111111111111111111"


def refusal(tool: str, arguments: Any) -> InvalidParameter:
    with pytest.raises(InvalidParameter) as refused:
        decode(TABLE[tool].params, arguments, tool)
    return refused.value


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        yield from patterns(list(schema.values()))
    elif isinstance(schema, list):
        for part in schema:
            yield from patterns(part)


def test_each_pattern_of_a_parameter_is_told_in_words() -> None:
    kinds = [tool.params for tool in (*TABLE.values(), *AGENT_TOOLS.values())]
    found = {each for kind in kinds for each in patterns(schema_of(kind))}
    assert found == set(FORMS)


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        ("project_create", None, "name: is required; give a string"),
        ("project_create", {}, "name: is required; give a string"),
        ("project_create", {"name": None}, "name: must not be null; leave it out or give a string"),
        ("project_create", {"name": 7}, "name: must be a string, not an integer"),
        ("project_create", {"name": ["a"]}, "name: must be a string, not an array"),
        ("project_create", {"name": ""}, "name: must not be empty"),
        ("project_create", {"name": "  "}, "name: must not be empty"),
        (
            "project_create",
            {"name": "a" * 201},
            "name: is longer than 200 characters; make it shorter",
        ),
        (
            "project_create",
            {"name": "a\x00b"},
            "name: must not contain control characters or line breaks",
        ),
        (
            "project_create",
            {"name": "a\n"},
            "name: must not contain control characters or line breaks",
        ),
        ("project_create", {"name": "a", "init_git": "yes"}, "init_git: must be true or false"),
        (
            "project_create",
            {"name": "a", "autonomy": "max"},
            "autonomy: must be one of: ask, high, low, medium, off",
        ),
        ("project_create", {"name": "a", "limits": 3}, "limits: must be an object, not an integer"),
        (
            "project_create",
            {"name": "a", "limits": {"max_depth": -1}},
            "limits.max_depth: must be at least 0",
        ),
        (
            "project_create",
            {"name": "a", "limits": {"depth": 1}},
            "'depth': unknown parameter; limits takes: max_depth, max_agents, max_agents_at_once,"
            " max_cost_usd, max_wall_seconds, max_turn_seconds, max_turn_steps",
        ),
        ("project_create", {"name": "a", "remote_url": "ext::sh -c x"}, "remote_url: 'ext::sh"),
        ("project_create", {"name": "a", "remote_url": "--upload-pack=x"}, "remote_url: '--up"),
        ("project_create", {"name": "a", "remote_url": "file:///etc"}, "remote_url: 'file:"),
        ("project_create", {"name": "a", "remote_url": "ftp://u:s3@h/x"}, "remote_url: must be an"),
        *(
            ("project_create", {"name": "a", **given}, f"{field}: must not contain a")
            for url in (
                "https://u:s3cr@host/x.git",
                "https://s3cr@host/x.git",
                "http://:s3cr@host/x",
                "git://u:s3cr@host/x",
                "ssh://git:s3cr@host/x",
                "https://u:s3/cr@host/x",
                "https://u:s3?cr@host/x",
                "https://host/x.git?token=s3cr",
                "https://host/x.git#s3cr",
                "https://u:s3@cr@host/x",
                "ssh://git%3As3cr@host/x",
            )
            for field, given in (
                ("remote_url", {"remote_url": url}),
                ("repository.url", {"repository": {"url": url}}),
            )
        ),
        ("project_list", {"limit": 0}, "limit: must be at least 1"),
        ("project_list", {"limit": 1001}, "limit: must be at most 1000"),
        ("project_list", {"limit": "10"}, "limit: must be an integer, not a string"),
        ("project_list", {"limit": True}, "limit: must be an integer, not true or false"),
        ("project_list", {"limit": 1.5}, "limit: must be an integer, not a number"),
        (
            "project_list",
            {"page": 2},
            "'page': unknown parameter; project_list takes: name_contains, limit, cursor",
        ),
        ("project_options", {"x": 1}, "'x': unknown parameter; project_options takes: no param"),
        ("project_get", {"project_id": "proj_x"}, "project_id: 'proj_x' is not an id of the form"),
        ("project_get", {"project_id": SESSION}, f"project_id: '{SESSION}' is not an id of the"),
        ("session_get", {"session_id": "../../etc"}, "session_id: '../../etc' is not an id"),
        (
            "workspace_delete",
            {"project_id": PROJECT, "workspace_id": "x"},
            "workspace_id: 'x' is not a UUID in lower case",
        ),
        (
            "project_delete",
            {"project_id": PROJECT, "discard": "yes"},
            "discard: must be the 40 hexadecimal digits that the refusal without it names",
        ),
        ("session_spawn", {"project_id": PROJECT}, "prompt: is required; give a string"),
        (
            "session_spawn",
            {"project_id": PROJECT, "prompt": "a" * (1024 * 1024 + 1)},
            "prompt: is longer than 1048576 characters; make it shorter",
        ),
        (
            "session_spawn",
            {"project_id": PROJECT, "prompt": "x", "context": {"caller_tools": [{"nam": "a"}]}},
            "'nam': unknown parameter; context.caller_tools[0] takes: name, description,"
            " inputSchema, durable",
        ),
        (
            "session_spawn",
            {"project_id": PROJECT, "prompt": "x", "context": {"caller_tools": [{}]}},
            "context.caller_tools[0].name: is required; give a string",
        ),
        (
            "session_spawn",
            {"project_id": PROJECT, "prompt": "x", "caller_id": "oubliette-1"},
            "caller_id: names that begin with 'oubliette' are ours",
        ),
        (
            "session_spawn",
            {"project_id": PROJECT, "prompt": "x", "caller_id": "a b"},
            "caller_id: 'a b' must be 1 to 64 of A-Z a-z 0-9 _ -",
        ),
        ("session_events", {"session_id": SESSION, "since_index": -2}, "since_index: must be at l"),
        ("session_events", {"session_id": SESSION, "wait_seconds": -1}, "wait_seconds: must be at"),
        (
            "session_events",
            {"session_id": SESSION, "wait_seconds": math.nan},
            "wait_seconds: JSON ",
        ),
        (
            "session_events",
            {"session_id": SESSION, "wait_seconds": math.inf},
            "wait_seconds: JSON ",
        ),
        (
            "session_events",
            {"session_id": SESSION, "max_events": 2**70},
            "max_events: an integer o",
        ),
        ("token_create", {"name": "a", "scope": 1}, "scope: must be a string, not an integer"),
        (
            "token_create",
            {"name": "a", "scope": "read", "principal": "session:x"},
            "principal: 'session:x' must be 1 to 128 of",
        ),
        ("token_revoke", {"token_id": "tok_1"}, "token_id: 'tok_1' is not an id of the form tok_"),
        (
            "caller_tool_response",
            {"session_id": SESSION, "request_id": "r", "error": {"message": "x"}},
            "error: must be a string, not an object",
        ),
        (
            "caller_tool_response",
            {"session_id": SESSION, "request_id": "r", "result": nested(100)},
            "'result': nested deeper than 64 levels",
        ),
        (
            "caller_tool_response",
            {"session_id": SESSION, "request_id": "r", "result": "\ud800"},
            "result: is not valid Unicode",
        ),
        (
            "caller_tool_response",
            {"session_id": SESSION, "request_id": "r", "result": {"\ud800": 1}},
            "result: is not valid Unicode",
        ),
        ("project_list", {"name_contains": "a\0"}, "name_contains: must not contain the char"),
        ("project_list", {"cursor": "\0"}, "cursor: must not contain the character NUL"),
        ("project_list", [], "arguments: must be an object with the parameters of project_list"),
        ("project_list", "x", "arguments: must be an object with the parameters of project_list"),
    ],
)
def test_the_sentence_names_the_field_and_the_remedy(
    tool: str, arguments: Any, sentence: str
) -> None:
    error = refusal(tool, arguments)
    assert error.message.startswith(sentence)
    assert error.field is not None
    assert "s3" not in str(error)  # a part of a password


def test_null_is_as_good_as_leaving_out_where_there_is_no_default() -> None:
    params: Any = decode(
        TABLE["project_list"].params, {"name_contains": None, "cursor": None}, "project_list"
    )
    assert params.name_contains is None


def test_no_arguments_are_no_arguments() -> None:
    for given_ in (None, {}):
        params: Any = decode(TABLE["project_list"].params, given_, "project_list")
        assert params.limit == 100


def test_a_huge_parameter_is_not_repeated_in_the_refusal() -> None:
    for arguments in (
        {"x" * 1_000_000: 1},
        {"project_id": "y" * 1_000_000},
        {"project_id": {"z" * 1_000_000: 1}},
    ):
        assert len(refusal("project_get", arguments).message) < 400


def test_nesting_up_to_the_limit_is_taken() -> None:
    check_values({"result": nested(MAX_DEPTH - 1)})
    with pytest.raises(InvalidParameter):
        check_values({"result": nested(MAX_DEPTH + 1)})


def test_nesting_beyond_the_interpreters_stack_is_refused_as_well() -> None:
    assert "nested deeper" in refusal("caller_tool_response", {"result": nested(100_000)}).message


def test_any_number_of_values_is_bounded() -> None:
    assert "more than" in refusal("caller_tool_response", {"result": [0] * 1_000_001}).message


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.text(st.characters(categories=["Cs", "Lu"]), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5))
def test_what_passes_the_check_can_be_stored_and_sent(arguments: dict[str, Any]) -> None:
    try:
        check_values(arguments)
    except InvalidParameter:
        return
    assert msgspec.json.decode(msgspec.json.encode(arguments)) == arguments
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(arguments)) == arguments


@given(st.sampled_from(sorted(TABLE)), st.data())
def test_any_json_gets_parameters_or_a_refusal_that_names_a_field(
    name: str, data: st.DataObject
) -> None:
    fields = TABLE[name].params.__struct_encode_fields__
    keys = st.sampled_from([*fields, "zzz"])
    arguments = data.draw(st.dictionaries(keys, JSON, max_size=4))
    try:
        decode(TABLE[name].params, arguments, name)
    except InvalidParameter as error:
        assert error.field
        assert "`" not in error.message
        assert len(error.message) < 1500
