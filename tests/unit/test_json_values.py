"""What comes from outside is checked once: what passes, every door and every encoder takes."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pydantic_core
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oubliette import json_values
from oubliette.actors.agent_requests.params import text_param
from oubliette.api.tools.results import NotJson, plain
from oubliette.contract.validation import decode
from oubliette.errors import InvalidParameter
from oubliette.incontainer.python_agent.main import _line_of
from oubliette.json_values import (
    ENVELOPE,
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_VALUES,
    check_count,
    check_values,
    parse_object,
)
from oubliette.runtime.agents.checked import message_of
from oubliette.runtime.store.codec import encode
from oubliette.tools.registry import TABLE
from tests import selection
from tests.conformance.agents import AGENTS
from tests.selection import core

SCRIPTED = next(agent for agent in AGENTS if agent.name == "scripted")
BAD_SCALARS = [2**64, -(2**63) - 1, 10**400, math.nan, math.inf, -math.inf, "\ud800", "a\udfffb"]
GOOD_SCALARS = [2**64 - 1, -(2**63), 1.7e308, 5e-324, -0.0, "\0\u2028\U0010ffff", "", None, True]


def nested(value: Any, levels: int) -> Any:
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


scalars = (
    st.sampled_from(GOOD_SCALARS)
    | st.sampled_from(BAD_SCALARS)
    | st.integers(-(2**64), 2**65)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.text(st.characters(categories=["Cs", "Lu"]), max_size=3)
)
names = st.sampled_from(["a", "type", "ref", "\0", "é", "\ud83d"]) | st.text(max_size=4)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
depths = st.sampled_from([0, 0, 0, 1, *range(MAX_DEPTH - 4, MAX_DEPTH + 24), 190, 260, 940])
documents = st.builds(nested, trees, depths)


def passes(value: Any, envelope: int = 0) -> bool:
    try:
        check_values({"x": value}, envelope=envelope)
    except InvalidParameter as refused:
        assert refused.message.startswith(("x", "'x'"))
        assert refused.field == "x"
        assert len(refused.message) < 400
        refused.message.encode()
        return False
    return True


def sendable(value: Any) -> None:
    """Every encoder takes it, and gives it back as it was."""
    assert msgspec.json.decode(msgspec.json.encode(value)) == value
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value)) == value
    assert json.loads(json.dumps(value)) == value
    assert pydantic_core.from_json(pydantic_core.to_json(value)) == value
    assert pydantic_core.to_jsonable_python(value) == value
    assert msgspec.json.decode(encode(value)) == value


@settings(max_examples=selection.examples(60))
@given(documents)
@example(nested(1, MAX_DEPTH))
def test_what_passes_is_taken_by_every_encoder_and_comes_back_as_it_was(value: Any) -> None:
    if passes(value):
        sendable({"result": {"structuredContent": {"events": [{"arguments": {"x": value}}]}}})


@pytest.mark.parametrize("bad", BAD_SCALARS, ids=ascii)
@pytest.mark.parametrize("place", [lambda v: v, lambda v: [[v]], lambda v: {"k": [1, {"l": v}]}])
def test_one_bad_value_is_refused_anywhere(bad: Any, place: Any) -> None:
    assert not passes(place(bad))


@pytest.mark.parametrize("good", GOOD_SCALARS, ids=ascii)
def test_the_last_good_value_passes(good: Any) -> None:
    assert passes(good)
    sendable({"x": good})


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"y": [1, {"z": 2**64}]}, "x.y[1].z: an integer of more than 64 bits"),
        ([0, [1.5, math.nan]], "x[1][1]: JSON has no NaN or Infinity"),
        ({"y": ["\ud800"]}, "x.y[0]: is not valid Unicode (half of a surrogate pair)"),
        ({"y": {"\ud800": 1}}, "x.y: is not valid Unicode (half of a surrogate pair)"),
        ({"`\n": 2**64}, "x.??: an integer of more than 64 bits"),
        ({"y": {1: 2}}, "x.y: has a name that is no text"),
        ({"y": b""}, "x.y: bytes is no type of JSON"),
        (nested(1, MAX_DEPTH + 1), "'x': nested deeper than 64 levels"),
        ([0] * (MAX_VALUES + 1), f"'x': more than {MAX_VALUES} values"),
        ("y" * (MAX_CHARACTERS + 1), f"'x': texts of more than {MAX_CHARACTERS} characters"),
        ({"y" * (MAX_CHARACTERS + 1): 1}, f"'x': texts of more than {MAX_CHARACTERS} characters"),
    ],
    ids=range(11),
)
def test_a_refusal_names_the_place_and_the_limit(value: Any, sentence: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        check_values({"x": value})
    assert refused.value.message == sentence


def test_the_limit_of_the_depth_is_exact() -> None:
    assert passes(nested(1, MAX_DEPTH))
    assert not passes(nested(1, MAX_DEPTH + 1))
    assert not passes(nested(1, 100_000))
    assert passes(nested(1, MAX_DEPTH + ENVELOPE), ENVELOPE)
    assert not passes(nested(1, MAX_DEPTH + ENVELOPE + 1), ENVELOPE)


# ---------------------------------------------------------------- the count


@pytest.mark.parametrize(
    "item",
    [
        b"1",
        b"[1]",
        b"[]",
        b"{}",
        b'{"a":1}',
        b'"a"',
        rb'"\\"',
        rb'"\",[{"',
        b"[ ]\n",
        b'{",":[[]]}',
    ],
)
def test_too_many_values_are_refused_before_objects_are_made_of_them(
    item: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = b'{"type":"x","a":[' + b",".join([item] * 1_000_001) + b"]}"
    monkeypatch.setattr(json_values, "_decode", pytest.fail)
    monkeypatch.setattr(json, "loads", pytest.fail)
    with pytest.raises(InvalidParameter) as refused:
        parse_object(line)
    assert refused.value.message == f"'arguments': more than {MAX_VALUES} values"
    assert message_of(line) is None


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32"])
def test_no_other_encoding_hides_values_in_what_looks_like_a_text(encoding: str) -> None:
    """Python's own decoder, which the MCP SDK uses, reads these."""
    hidden = r'["\"",' + "[1]," * MAX_VALUES + "1]"
    with pytest.raises(InvalidParameter):
        check_count(hidden.encode(encoding))


@pytest.mark.parametrize("text", [",", "[{", '",', '\\",[', "\\", "é[,\n"])
def test_commas_and_brackets_in_texts_are_no_values(text: str) -> None:
    long = text * (2 * MAX_VALUES)
    for fields in ({"a": long}, {long: 1, "b": [long, {}]}, {"a": [text * 9] * 100_000}):
        line = json.dumps(fields, ensure_ascii=False).encode()
        assert parse_object(line) == fields


@settings(max_examples=selection.examples(8), deadline=None)
@given(documents)
def test_the_limit_of_the_count_is_exact(value: Any) -> None:
    """An empty object or array counts twice."""

    def marks(node: Any) -> int:
        inner = list(node.values()) if isinstance(node, dict) else node
        return max(len(inner), 1) + sum(map(marks, inner)) if isinstance(inner, list) else 0

    item = json.dumps(value).encode()
    times = MAX_VALUES // (marks(value) + 1)
    check_count(b"[" + b", ".join([item] * times) + b"]")
    with pytest.raises(InvalidParameter):
        check_count(b"[" + b", ".join([item] * (times + 1)) + b"]")


# ---------------------------------------------------------------- the doors


@settings(max_examples=selection.examples(40))
@given(documents)
def test_http_and_programs_take_what_passes_and_nothing_else(value: Any) -> None:
    arguments = {"session_id": "s", "request_id": "r", "result": value}
    good = passes(value)
    try:
        decode(TABLE["caller_tool_response"].params, arguments, "caller_tool_response")
        assert good
    except InvalidParameter:
        assert not good
    try:
        assert plain(value) == value
        assert good
    except NotJson:
        assert not good


@settings(max_examples=selection.examples(40))
@given(st.text(st.sampled_from("a/\0\x01é\ud83d"), max_size=4))
@example("a\0b")
@example("\ud83d")
def test_a_name_that_a_link_takes_can_be_stored_by_every_database(name: str) -> None:
    params = {"call_id": name}
    try:
        check_values(params)
        assert text_param(params, "call_id", 200) == name
    except InvalidParameter as refused:
        assert refused.field == "call_id"
        assert not name or "\0" in name or "\ud83d" in name
    else:
        assert "\0" not in name.encode().decode()


@pytest.mark.parametrize("agent", core([SCRIPTED], AGENTS), ids=lambda agent: agent.name)
@settings(max_examples=selection.examples(25))
@given(documents)
@example(2**64)
@example({"n": 10**400})
@example(nested(1, 150))
def test_events_of_whatever_an_agent_says_can_be_sent(agent: Any, value: Any) -> None:
    update = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "t", "rawInput": value}
    frames = [
        {"type": "tool_call", "turn": 1, "call_id": "c", "tool": "t", "arguments": {"x": value}},
        {"type": "of_no_kind", "turn": 1, "x": value},
        {"jsonrpc": "2.0", "method": "session/update", "params": {"update": update}},
        {
            "id": 7,
            "method": "session/request_permission",
            "params": {"toolCall": {"rawInput": value}},
        },
    ]
    adapter = agent.adapter()
    for frame in frames:
        line = json.dumps(frame).encode() + b"\n"
        for event in adapter.feed(line, 0):
            sendable({"events": [event.data]})
            assert json_values.is_fit(event.data)


def test_an_integer_beyond_64_bits_is_shown_as_text_and_the_turn_goes_on() -> None:
    adapter = SCRIPTED.adapter()
    call = {"type": "tool_call", "turn": 1, "call_id": "c", "tool": "t", "arguments": {"x": 2**64}}
    (event,) = adapter.feed(json.dumps(call).encode() + b"\n", 0)
    assert (event.type, event.data["arguments"]) == ("tool_call", {"x": "18446744073709551616"})


@pytest.mark.parametrize("value", BAD_SCALARS, ids=ascii)
def test_the_end_of_a_turn_of_a_function_is_heard_whatever_it_reports(value: Any) -> None:
    told = {"turn": 1, "final_text": "a\ud800", "status": "completed", "more": [value]}
    (event,) = SCRIPTED.adapter().feed(_line_of({"type": "completion", **told}), 0)
    assert event.type == "completion"
    sendable(event.data)
