"""Where an ACP turn ends: some agents send its updates behind the response to the prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oubliette.runtime.agents import AcpAdapter
from oubliette.runtime.agents.handshake_adapter import Opening
from oubliette.runtime.agents.silence import events_of_silence, pause_of


class Talk:
    """An agent whose session is open, and an adapter that reads what it says."""

    def __init__(self, **state: Any) -> None:
        known: dict[str, Any] = {"ready": True, "agent_session_id": "s", "prompted": None}
        self.adapter = AcpAdapter(Opening(cwd="/w", autonomy="ask"), known | state)
        self.events: list[Any] = []
        self._offset = 0

    def say(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        self.events += self.adapter.feed(line, self._offset)
        self._offset += len(line)

    def update(self, kind: str, **fields: Any) -> None:
        update = {"sessionUpdate": kind, **fields}
        self.say({"method": "session/update", "params": {"sessionId": "s", "update": update}})

    def chunk(self, text: str, **fields: Any) -> None:
        self.update("agent_message_chunk", content={"type": "text", "text": text}, **fields)

    def answer(self, turn: int, reason: str = "end_turn") -> None:
        self.say({"id": f"prompt-{turn}", "result": {"stopReason": reason}})

    def refuse(self, turn: int) -> None:
        self.say({"id": f"prompt-{turn}", "error": {"code": 1, "message": "no model"}})

    def silence(self) -> None:
        assert pause_of(self.adapter)
        self.events += events_of_silence(self.adapter)
        assert not pause_of(self.adapter)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.type == kind]

    @property
    def ends(self) -> list[tuple[int, str, str]]:
        return [
            (each["turn"], each["status"], each["final_text"]) for each in self.of("completion")
        ]


def test_a_chunk_behind_the_response_belongs_to_the_turn_that_ends() -> None:
    talk = Talk()
    talk.adapter.prompt(1, "what?")
    talk.chunk("forty")
    talk.answer(1)
    assert not talk.ends
    talk.chunk("-two.")
    talk.silence()
    talk.adapter.prompt(2, "more")
    talk.chunk("Only second.")
    talk.answer(2)
    talk.silence()
    assert talk.ends == [(1, "completed", "forty-two."), (2, "completed", "Only second.")]
    assert [each["turn"] for each in talk.of("message")] == [1, 2]
    places = [(event.end_offset, event.ordinal) for event in talk.events]
    assert places == sorted(set(places))
    assert talk.events[-1].ack_offset == talk.events[-1].end_offset


def test_a_turn_whose_whole_answer_is_late_has_it() -> None:
    talk = Talk()
    talk.adapter.prompt(1, "what?")
    talk.answer(1)
    talk.chunk("late")
    talk.silence()
    assert talk.ends == [(1, "completed", "late")]
    assert [each["turn"] for each in talk.of("turn_started")] == [1]


def test_a_tool_that_ends_behind_the_response_has_its_own_result() -> None:
    talk = Talk()
    talk.adapter.prompt(1, "what?")
    talk.update("tool_call", toolCallId="c", title="run", status="in_progress")
    talk.answer(1)
    talk.update("tool_call_update", toolCallId="c", status="completed", rawOutput="3")
    talk.silence()
    (result,) = talk.of("tool_result")
    assert not result["is_error"]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("agent_message_chunk", {"content": {"type": "text", "text": "stray"}}),
        ("agent_message_chunk", {"content": {"type": "text", "text": "x"}, "messageId": ["m"]}),
        ("agent_thought_chunk", {"content": {"type": "text", "text": "hm"}}),
        ("tool_call", {"toolCallId": "c", "title": "run", "status": "completed"}),
        ("tool_call_update", {"toolCallId": "c", "status": "completed"}),
        ("plan", {"entries": []}),
    ],
)
def test_what_comes_between_two_turns_begins_none(kind: str, fields: dict[str, Any]) -> None:
    for state in ({}, {"turn": 4}):
        talk = Talk(**state)
        if not state:
            talk.adapter.prompt(1, "what?")
            talk.answer(1)
            talk.silence()
            talk.events.clear()
        talk.update(kind, **fields)
        assert [event.type for event in talk.events] == ["system"]
        talk.adapter.prompt(5, "more")
        talk.chunk("clean")
        talk.answer(5)
        talk.silence()
        assert talk.ends == [(5, "completed", "clean")]


@pytest.mark.parametrize("late", ["chunk", "tool"])
def test_what_names_the_turn_before_is_none_of_the_next(late: str) -> None:
    talk = Talk()
    talk.adapter.prompt(1, "what?")
    talk.update("tool_call", toolCallId="c", title="run", status="completed")
    talk.chunk("forty", messageId="m1")
    talk.answer(1)
    talk.silence()
    talk.adapter.prompt(2, "more")
    if late == "chunk":
        talk.chunk("-two", messageId="m1")
    else:
        talk.update("tool_call_update", toolCallId="c", status="completed")
    talk.chunk("second", messageId="m2")
    talk.answer(2)
    talk.silence()
    assert talk.ends == [(1, "completed", "forty"), (2, "completed", "second")]
    assert len(talk.of("tool_call")) == 1


def test_the_outcome_is_that_of_the_response_whatever_follows_it() -> None:
    talk = Talk()
    talk.adapter.prompt(1, "what?")
    talk.answer(1)
    talk.adapter.interrupt(1)
    talk.silence()
    talk.adapter.prompt(2, "what?")
    talk.adapter.interrupt(2)
    talk.answer(2)
    talk.silence()
    talk.adapter.prompt(3, "what?")
    talk.refuse(3)
    talk.chunk("oh")
    talk.silence()
    assert [end[1] for end in talk.ends] == ["completed", "interrupted", "failed"]


def test_output_that_is_read_again_ends_the_turn_that_the_log_lacks_and_no_other() -> None:
    """A server was killed while turn 2 ran; the output of turn 1 was not acknowledged yet."""
    talk = Talk(turn=1, prompted=2)
    talk.chunk("first")
    talk.answer(1)
    talk.chunk("second")
    talk.answer(2)
    talk.chunk(", late")
    talk.silence()
    assert talk.ends == [(2, "completed", "second, late")]
