"""Decoding of events: each documented type has its class, and nothing is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oubliette
from oubliette.api import events
from oubliette.api.events import Event, LargeEvent, SystemEvent, UnknownEvent, decode_event
from oubliette.api.events.decoding import encode_event
from oubliette.contract.events import EventType

PAGE = Path(oubliette.__file__).parents[1] / "docs" / "events.md"
HEAD = {"session_id": "gogol_1", "index": 4, "seq": 90, "ts": 1795253979.67, "version": 1}
EXAMPLES: dict[str, dict[str, Any]] = {
    "status": {"status": "failed", "reason": "the agent was killed"},
    "delta": {"text": "Hel"},
    "message": {"text": "Hello", "role": "assistant"},
    "tool_call": {"call_id": "c", "tool": "add", "arguments": {"a": 1}},
    "tool_result": {"call_id": "c", "tool": "add", "is_error": False, "result": {"sum": 3}},
    "completion": {"final_text": "Hello", "status": "completed"},
    "error": {"message": "too many steps", "kind": "limit", "limit": "max_turn_steps"},
    "caller_tool_request": {
        "request_id": "r",
        "tool": "add",
        "arguments": {},
        "deadline": 1795254039.67,
        "ancestry": ["gogol_1"],
        "caller_id": "shop",
    },
    "caller_tool_progress": {
        "request_id": "r",
        "tool": "add",
        "caller_id": "shop",
        "message": "half way",
    },
    "caller_tool_settled": {"request_id": "r", "tool": "add", "outcome": "result", "error": None},
    "session_map": {"call_id": "m", "total": 3, "done": 2, "failed": 1},
    "snapshot": {
        "ref": "refs/oubliette/gogol_1/2",
        "moment": "end",
        "files": 3,
        "insertions": 10,
        "deletions": 2,
        "left_out": 1,
        "left_out_shown": {"pipe": "pipe"},
        "torn": False,
    },
    "permission_request": {
        "request_id": "r",
        "text": "bash: ls",
        "asks_for": "bash: ls *",
        "tool_call": {"permission": "bash"},
        "deadline": 1795254039,
        "ancestry": ["gogol_1"],
    },
    "permission_settled": {
        "request_id": "r",
        "asks_for": "bash: ls *",
        "decision": "deny",
        "reason": "nobody allowed it in time",
        "remember": "once",
    },
    "system": {"kind": "usage", "cost_usd": 0.5},
}


def example(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **HEAD, "turn": 2, **EXAMPLES[kind], **more}


def documented_fields(kind: str) -> set[str]:
    section = re.search(
        rf"^### `{kind}`$(.*?)(?=^##)", PAGE.read_text(encoding="utf-8"), re.M | re.S
    )
    assert section
    rows = re.findall(r"^\| (`[^|]*) \|", section[1], re.M)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_type_of_the_log_has_a_class() -> None:
    assert set(EXAMPLES) == set(get_args(EventType))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_event_has_all_fields_of_its_type(kind: str) -> None:
    event = decode_event(example(kind))
    assert not isinstance(event, UnknownEvent)
    assert event.type == kind
    for name, value in {**HEAD, "turn": 2, **EXAMPLES[kind]}.items():
        if isinstance(event, SystemEvent) and name in event.data:
            assert event.data[name] == value
        else:
            found = getattr(event, name)
            assert (list(found) if isinstance(found, tuple) else found) == value


@pytest.mark.parametrize("kind", [*EXAMPLES, "of a later release"])
def test_an_event_is_encoded_as_it_was_before_it_was_decoded(kind: str) -> None:
    whole = example(kind) if kind in EXAMPLES else {"type": kind, **HEAD, "more": {"deep": [1]}}
    encoded = encode_event(decode_event(whole))
    assert {name: encoded[name] for name in whole} == whole
    assert decode_event(encoded) == decode_event(whole)


@pytest.mark.parametrize("kind", sorted(set(EXAMPLES) - {"system"}))
def test_a_class_has_the_documented_fields_and_no_others(kind: str) -> None:
    own = set(type(decode_event(example(kind))).__struct_fields__) - {*Event.__struct_fields__}
    assert own == documented_fields(kind) - {"turn"}


@pytest.mark.parametrize("name", events.__all__)
def test_every_public_name_is_described(name: str) -> None:
    thing = getattr(events, name)
    assert thing.__doc__
    if isinstance(thing, type) and issubclass(thing, Event):
        with pytest.raises(AttributeError):
            setattr(thing(**_required(thing)), "type", "other")  # noqa: B010 (frozen)


def _required(kind: type[Event]) -> dict[str, Any]:
    return {
        field.encode_name: 0 if field.type is int else "x"
        for field in msgspec.structs.fields(kind)
        if field.required
    }


def test_events_are_matched_by_class_and_keyword() -> None:
    match decode_event(example("completion", status="failed", final_text="no model")):
        case events.Completion(status="failed", final_text=reason, turn=turn):
            assert (reason, turn) == ("no model", 2)
        case _:
            pytest.fail("no Completion")


def test_fields_and_types_of_later_releases_are_ignored_or_kept() -> None:
    assert isinstance(decode_event(example("delta", mood="good")), events.Delta)
    later = decode_event({"type": "mood", **HEAD, "good": True})
    assert isinstance(later, UnknownEvent)
    assert (later.type, later.index, later.data["good"], later.problem) == ("mood", 4, True, None)


def test_a_field_of_another_type_makes_an_unknown_event_that_names_it() -> None:
    odd = decode_event(example("delta", text=7))
    assert isinstance(odd, UnknownEvent)
    assert odd.problem is not None
    assert "$.text" in odd.problem
    assert (odd.session_id, odd.index, odd.turn) == ("gogol_1", 4, 2)


def test_a_system_event_keeps_its_fields_beside_the_common_ones() -> None:
    event = decode_event(example("system", raw="!", stage="image") | {"kind": "stage"})
    assert isinstance(event, SystemEvent)
    assert (event.kind, event.data) == ("stage", {"cost_usd": 0.5, "raw": "!", "stage": "image"})


def test_an_event_by_reference_is_large_whatever_its_type() -> None:
    ref = {"session_id": "gogol_1", "index": 4}
    event = decode_event(
        {"type": "caller_tool_request", **HEAD, "ref": ref, "size": 9_000_000, "request_id": "r"}
    )
    assert isinstance(event, LargeEvent)
    assert (event.type, event.size, event.data) == (
        "caller_tool_request",
        9_000_000,
        {"request_id": "r"},
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    sorted(
        {*HEAD, "turn", "redelivered", "ref", "size", *(n for e in EXAMPLES.values() for n in e)}
    )
)


@given(st.sampled_from(sorted(EXAMPLES)), st.dictionaries(FIELDS | st.text(), JSON, max_size=6))
def test_any_object_is_an_event(kind: str, fields: dict[str, Any]) -> None:
    for data in (fields, {**fields, "type": kind}, example(kind) | fields):
        event = decode_event(data)
        assert isinstance(event, Event)
        assert isinstance(event.index, int)
        assert isinstance(event.seq, int)
        assert isinstance(event.ts, float)
        assert event.turn is None or isinstance(event.turn, int)
        assert repr(event)


def test_a_deeply_nested_argument_is_no_error() -> None:
    nested: Any = {}
    for _ in range(100_000):
        nested = [nested]
    assert isinstance(decode_event(example("tool_call", arguments={"a": nested})), Event)


@given(st.sampled_from(sorted(set(EXAMPLES) - {"system"})))
def test_an_event_encodes_to_what_it_was_decoded_from(kind: str) -> None:
    event = decode_event(example(kind))
    assert decode_event(msgspec.to_builtins(event)) == event
