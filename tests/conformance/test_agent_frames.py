"""Every agent, hostile or out of its mind: nothing raises, cuts change nothing, events hold.

The million frames of a release are run with `python -m tests.conformance.frames`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oubliette.runtime.agents.checked import MAX_COUNT, MAX_DEPTH
from oubliette.runtime.agents.line_framing import MAX_LINE, Line, LineFramer
from oubliette.runtime.agents.silence import events_of_silence
from tests import selection
from tests.conformance.agents import AGENTS, Agent
from tests.conformance.frames import Conversation, check_event

each_agent = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
BY_NAME = {agent.name: agent for agent in AGENTS}
DIGITS = "9" * 5000


@each_agent
@settings(max_examples=selection.examples(60))
@given(seed=st.integers(0, 1 << 40))
def test_whatever_an_agent_says_is_events_however_it_is_cut(agent: Agent, seed: int) -> None:
    """And what is said to it does not depend on the cuts either."""
    assert Conversation(agent, seed).check() > 0


def note(**fields: Any) -> dict[str, Any]:
    params = {"notification": fields}
    return {"type": "notification", "method": "droid.session_notification", "params": params}


def update(**fields: Any) -> dict[str, Any]:
    return {"method": "session/update", "params": {"update": fields}}


def part(**fields: Any) -> dict[str, Any]:
    return {"event": {"type": "message.part.updated", "properties": {"part": fields}}}


OURS = "msg_0123456789aboub00000000001"
PROMPT = {
    "event": {
        "type": "message.updated",
        "properties": {"info": {"id": OURS, "role": "user", "sessionID": "s"}},
    }
}
ANSWER = {
    "event": {
        "type": "message.updated",
        "properties": {
            "info": {"id": "m", "role": "assistant", "sessionID": "s", "parentID": OURS}
        },
    }
}
HOSTILE = [
    ("droid", [note(type=["error"])]),
    ("droid", [note(type={"a": 1})]),
    ("droid", [{"type": "response", "id": f"prompt-{DIGITS}", "error": {"message": "x"}}]),
    ("acp", [{"id": "prompt-1", "result": {"stopReason": ["refusal"]}}]),
    ("acp", [{"id": f"prompt-{DIGITS}", "result": {}}]),
    ("acp", [{"id": "prompt-²", "result": {}}]),
    ("acp", [update(sessionUpdate="usage_update", cost={"amount": 10**400})]),
    ("opencode", [{"id": f"status-{DIGITS}", "status": 200, "body": {}}]),
    ("opencode", [PROMPT, ANSWER, part(id="p", messageID="m", type=["step-start"])]),
    ("opencode", [PROMPT, ANSWER, part(id="p", messageID="m", type="tool", state={"status": {}})]),
    (
        "opencode",
        [
            PROMPT,
            ANSWER,
            part(id="p", messageID="m", type="step-finish", tokens={"input": 10**400}),
        ],
    ),
]


@pytest.mark.parametrize(("name", "frames"), HOSTILE)
def test_a_value_that_is_not_what_it_should_be_counts_as_not_said(
    name: str, frames: list[dict[str, Any]]
) -> None:
    data = b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)
    adapter = BY_NAME[name].adapter()
    for event in adapter.feed(data, 0) + events_of_silence(adapter):
        check_event(event, name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": True},
        {"tokens": -1},
        {"tokens": 1.5},
        {"tokens": MAX_COUNT + 1},
        {"cost_usd": False},
        {"cost_usd": -0.5},
        {"cost_usd": 10**400},
        {"cost_usd": 1e300},
        {"input_tokens": "many"},
        {"output_tokens": None},
        {"turn": 10**300},
        {"turn": -1},
    ],
)
def test_usage_that_cannot_be_counted_is_none(wrong: dict[str, Any]) -> None:
    frame = {"type": "usage", "turn": 1, "cost_usd": 1, "tokens": 3, **wrong}
    (event,) = BY_NAME["scripted"].adapter().feed(json.dumps(frame).encode() + b"\n", 0)
    fields = frame.items()
    told = {name: str(value) if _is_too_large(value) else value for name, value in fields}
    assert (event.type, event.data) == ("system", told)


def _is_too_large(value: object) -> bool:
    return isinstance(value, int) and value >= 2**64


@pytest.mark.parametrize("usage", [{"inputTokens": 10**400}, {"outputTokens": True}])
def test_what_cannot_be_counted_of_a_turn_is_left_out(usage: dict[str, Any]) -> None:
    frame = {"id": "prompt-1", "result": {"usage": {"totalTokens": 7, **usage}}}
    adapter = BY_NAME["acp"].adapter()
    events = adapter.feed(json.dumps(frame).encode() + b"\n", 0) + events_of_silence(adapter)
    (told,) = [event.data for event in events if event.type == "usage"]
    assert told == {"turn": 1, "tokens": 7}


def test_an_agent_cannot_pass_what_it_reports_for_measured() -> None:
    frame = {"type": "usage", "turn": 1, "cost_usd": 1, "tokens": 3, "measured": True}
    (event,) = BY_NAME["scripted"].adapter().feed(json.dumps(frame).encode() + b"\n", 0)
    assert (event.type, event.data) == ("usage", {"turn": 1, "cost_usd": 1, "tokens": 3})


LONG = "x" * MAX_LINE
LONG_RESULT = {"stopReason": "end_turn", "x": LONG}
ENDS = [
    ("scripted", {"type": "completion", "turn": 1, "status": "completed", "final_text": LONG}),
    ("acp", {"jsonrpc": "2.0", "id": "prompt-1", "result": LONG_RESULT}),
    ("acp", {"jsonrpc": "2.0", "result": LONG_RESULT, "id": "prompt-1"}),
    ("acp", {"result": LONG_RESULT, "id": "prompt-1", "jsonrpc": "2.0"}),
]


@pytest.mark.parametrize(("name", "end"), ENDS)
def test_the_end_of_a_turn_that_is_too_long_to_be_read_fails_the_turn_with_the_sizes(
    name: str, end: dict[str, Any]
) -> None:
    adapter, line = BY_NAME[name].adapter({"ready": True}), json.dumps(end).encode() + b"\n"
    events = adapter.feed(line, 0) + events_of_silence(adapter)
    (error,) = [event.data["message"] for event in events if event.type == "error"]
    assert f"a line of {len(line) - 1} bytes; at most {MAX_LINE} are read" in error
    assert (events[-1].type, events[-1].data["status"]) == ("completion", "failed")
    places = [(event.end_offset, event.ordinal) for event in events]
    assert places == sorted(set(places))
    assert events[-1].ack_offset == len(line)


@pytest.mark.parametrize("before", [("jsonrpc", "id", "method"), ("method",)])
def test_a_request_that_is_too_long_to_be_read_is_refused_so_that_the_agent_goes_on(
    before: tuple[str, ...],
) -> None:
    """Before its parameters an agent writes these fields; the others come behind them."""
    fields = {"jsonrpc": "2.0", "id": 7, "method": "session/request_permission"}
    first = {name: fields[name] for name in before}
    frame = first | {"params": {"toolCall": {"rawInput": {"text": LONG}}}} | fields
    line = json.dumps(frame).encode() + b"\n"
    adapter = BY_NAME["acp"].adapter({"ready": True})
    assert [event.type for event in adapter.feed(line, 0)] == ["system"]
    answer = json.loads(b"".join(adapter.writes()))
    assert answer["id"] == 7
    assert f"a line of {len(line) - 1} bytes" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("droid.request_permission", {"selectedOption": "cancel"}),
        ("droid.ask_user", {"cancelled": True, "answers": []}),
    ],
)
def test_a_request_of_droid_that_is_too_long_to_be_read_is_refused(
    method: str, answer: dict[str, Any]
) -> None:
    fields = {"jsonrpc": "2.0", "type": "request", "factoryApiVersion": "1.0.0", "id": "r-1"}
    frame = {**fields, "method": method, "params": {"toolUses": [{"input": LONG}]}}
    adapter = BY_NAME["droid"].adapter({"ready": True})
    assert [event.type for event in adapter.feed(json.dumps(frame).encode() + b"\n", 0)] == [
        "system"
    ]
    said = json.loads(b"".join(adapter.writes()))
    assert (said["type"], said["id"], said["result"]) == ("response", "r-1", answer)


@pytest.mark.parametrize("name", ["acp", "droid"])
@pytest.mark.parametrize("named", ["007", "-1", "1e9", "{}", '"\\u0000"', "0"])
def test_a_line_that_is_too_long_may_begin_with_anything(name: str, named: str) -> None:
    line = f'{{"id":{named},"type":"request","method":"a/b","x":"{LONG}","id":{named}}}\n'
    adapter = BY_NAME[name].adapter({"ready": True})
    assert [event.type for event in adapter.feed(line.encode(), 0)] == ["system"]


@pytest.mark.parametrize("size", [1, 4095, 1 << 16])
def test_what_is_kept_of_a_line_that_is_too_long_does_not_depend_on_the_cuts(size: int) -> None:
    content = bytes(range(32, 120)) * 100
    framer = LineFramer(limit=5000)
    lines = [
        line
        for start in range(0, len(content) + 1, size)
        for line in framer.feed((content + b"\n")[start : start + size], start)
    ]
    assert lines == LineFramer(limit=5000).feed(content + b"\n", 0)
    (line,) = lines
    assert isinstance(line, Line)
    assert content.startswith(line.content)
    assert content.endswith(line.tail)
    assert line.tail


@pytest.mark.parametrize("kind", ["message", "delta", "tool_result"])
def test_an_event_that_is_too_long_to_be_read_is_an_error_of_its_turn(kind: str) -> None:
    line = json.dumps({"type": kind, "turn": 3, "text": LONG}).encode() + b"\n"
    events = BY_NAME["scripted"].adapter().feed(line, 0)
    assert [event.type for event in events] == ["system", "error"]
    assert events[1].data["turn"] == 3


@each_agent
@pytest.mark.parametrize(
    ("depth", "kept"), [(MAX_DEPTH - 1, True), (MAX_DEPTH, False), (900, False)]
)
def test_a_message_is_read_to_the_same_depth_wherever_it_is_read(
    agent: Agent, depth: int, kept: bool
) -> None:
    """Python's own limit depends on who asks: what was read could not be stored."""
    line = b'{"x": ' + b"[" * depth + b"]" * depth + b"}\n"
    (event,) = agent.adapter().feed(line, 0)
    assert event.type == "system"
    assert ("raw" not in event.data) == kept
