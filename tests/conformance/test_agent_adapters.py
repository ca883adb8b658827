"""Every agent: the same bytes give the same events, however they are cut."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.runtime.agents import AgentEvent
from oubliette.runtime.agents.silence import events_of_silence
from tests.conformance.agents import AGENTS, Agent

if TYPE_CHECKING:
    from oubliette.runtime.agents import AgentAdapter

each_agent = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)


def cut(data: bytes, places: list[int]) -> list[tuple[int, bytes]]:
    """Cut where told, and where the agent was silent: behind the responses to our prompts."""
    silences = (found.end() for found in re.finditer(rb'"id":"prompt-[^\n]*\n', data))
    edges = sorted({0, len(data), *silences, *(place % (len(data) + 1) for place in places)})
    return [(start, data[start:end]) for start, end in zip(edges, edges[1:], strict=False)]


def heard(
    adapter: AgentAdapter, parts: list[tuple[int, bytes]], start: int = 0
) -> list[AgentEvent]:
    events: list[AgentEvent] = []
    for offset, data in parts:
        events += adapter.feed(data, start + offset)
        events += events_of_silence(adapter)
    return events


def events_of(agent: Agent, parts: list[tuple[int, bytes]], start: int = 0) -> list[AgentEvent]:
    return heard(agent.adapter(), parts, start)


@each_agent
def test_the_transcript_gives_the_events_that_it_tells_of(agent: Agent) -> None:
    events = events_of(agent, cut(agent.transcript, []))
    assert [event.type for event in events] == list(agent.kinds)


@each_agent
@given(places=st.lists(st.integers(min_value=0, max_value=10_000)), start=st.integers(0, 1 << 50))
def test_any_cutting_gives_the_same_events_at_the_same_places(
    agent: Agent, places: list[int], start: int
) -> None:
    whole = events_of(agent, cut(agent.transcript, []), start)
    assert events_of(agent, cut(agent.transcript, places), start) == whole
    sources = [(event.end_offset, event.ordinal) for event in whole]
    assert sources == sorted(set(sources))
    for event in whole:
        assert event.ack_offset <= event.end_offset


@each_agent
@given(data=st.binary(max_size=400), places=st.lists(st.integers(0, 400), max_size=8))
def test_no_bytes_can_make_an_adapter_fail_or_forget(
    agent: Agent, data: bytes, places: list[int]
) -> None:
    data += b"\n"
    assert events_of(agent, cut(data, places)) == events_of(agent, [(0, data)])


@each_agent
@given(
    lines=st.lists(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.text()
            | st.sampled_from(["completion", "turn", "ready"]),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["type", "turn", "text", "status", "x"]), inner)
            ),
            max_leaves=8,
        ),
        max_size=5,
    )
)
def test_no_json_can_make_an_adapter_fail_or_forget(agent: Agent, lines: list) -> None:
    import json

    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    assert len(events_of(agent, [(0, data)])) >= len(lines)


@each_agent
@given(stop=st.integers(min_value=0))
def test_reading_again_from_an_acked_place_gives_exactly_what_was_missing(
    agent: Agent, stop: int
) -> None:
    """After a crash a new adapter gets the old one's state and the output from `ack_offset` on."""
    whole = events_of(agent, cut(agent.transcript, []))
    committed = whole[: stop % (len(whole) + 1)]
    seen = {(event.end_offset, event.ordinal) for event in committed}
    first = agent.adapter()
    resume_at = committed[-1].ack_offset if committed else 0
    heard(first, cut(agent.transcript[:resume_at], []))
    second = agent.adapter(first.state())
    again = heard(second, cut(agent.transcript[resume_at:], []), resume_at)
    fresh = [event for event in again if (event.end_offset, event.ordinal) not in seen]
    assert committed + fresh == whole


@each_agent
def test_output_that_was_fed_before_is_skipped(agent: Agent) -> None:
    adapter = agent.adapter()
    half = len(agent.transcript) // 2
    events = heard(adapter, cut(agent.transcript[:half], []))
    events += heard(adapter, cut(agent.transcript[: half - 10], []))
    events += heard(adapter, cut(agent.transcript[half - 10 :], []), half - 10)
    assert events == events_of(agent, cut(agent.transcript, []))


@each_agent
def test_output_that_was_lost_is_said_and_the_rest_is_read(agent: Agent) -> None:
    adapter = agent.adapter()
    middle = agent.transcript.index(b"\n", len(agent.transcript) // 2) + 1
    adapter.feed(agent.transcript[:20], 0)
    after = heard(adapter, cut(agent.transcript[middle:], []), middle)
    assert after[0].type == "system"
    assert after[0].data["missing"] == [0, middle]
    whole = [
        event for event in events_of(agent, cut(agent.transcript, [])) if event.end_offset > middle
    ]
    if not adapter.handshake:
        assert after[1:] == whole
        return
    # What was lost may have told which turn it is; the end of a turn tells it again.
    end = next(event.end_offset for event in whole if event.type == "completion")
    assert [what(event) for event in after if event.end_offset > end] == [
        what(event) for event in whole if event.end_offset > end
    ]


def what(event: AgentEvent) -> tuple:
    return event.type, event.data, event.end_offset, event.ordinal


@each_agent
def test_what_is_not_understood_is_kept(agent: Agent) -> None:
    events = events_of(agent, [(0, b"no message of ours \xff\n")])
    assert [event.type for event in events] == ["system"]
    assert "no message of ours" in events[0].data["raw"]


@each_agent
def test_a_line_without_end_takes_no_memory_without_end(agent: Agent) -> None:
    adapter = agent.adapter()
    block = b"x" * (1 << 20)
    for number in range(40):
        assert adapter.feed(block, number << 20) == []
    (event,) = adapter.feed(b"\n", 40 << 20)
    assert event.type == "system"
    assert event.data["truncated"] is True
    assert len(event.data["raw"]) <= 8192
    assert event.end_offset == (40 << 20) + 1


@each_agent
def test_input_is_whole_lines_whatever_the_text(agent: Agent) -> None:
    adapter = agent.adapter()
    adapter.feed(agent.opening, 0)
    text = 'a\nb "quoted" \\ \u2028 é \x00 {"type": "interrupt"}'
    for data in (adapter.prompt(1, text), adapter.permission("r\n1", "deny", text)):
        assert data.endswith(b"\n")
        assert data.count(b"\n") == 1
