"""The transcript of sessions, out of their events."""

from __future__ import annotations

from typing import Any

import pytest

from oubliette.api.events.decoding import decode_event
from oubliette.cli.terminal.transcript import LINES, WIDTH, Transcript

ROOT = "gogol_01m8dbmeqzrs00000000000001"
CHILD = "gogol_01m8dbmeqzrs00000000000002"


def told(*events: dict[str, Any]) -> list[str]:
    """The transcript of events of one session, a second apart."""
    transcript = Transcript()
    head = {"session_id": ROOT, "index": 0, "seq": 0}
    return [
        passage.text
        for at, event in enumerate(events)
        for passage in transcript.passages(decode_event({**head, "ts": float(at), **event}))
    ]


BEGIN = {"type": "status", "status": "running", "message": "Fix it"}


def system(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "system", "kind": kind, **fields}


def test_a_turn_is_its_prompt_what_was_done_the_answer_and_what_it_has_cost() -> None:
    lines = told(
        BEGIN,
        system("stage", stage="create", state="done", elapsed_ms=3),
        system("ready", agent="opencode"),
        system("turn_started"),
        {"type": "delta", "text": "I look "},
        {"type": "delta", "text": "at it."},
        {"type": "message", "text": "I look at it."},
        {"type": "tool_call", "call_id": "1", "tool": "bash", "arguments": {"command": "ls -la"}},
        {
            "type": "tool_result",
            "call_id": "1",
            "result": {"content": [{"type": "text", "text": "a\nb"}]},
        },
        system("usage", cost_usd=0.25, input_tokens=1200, output_tokens=5),
        system("usage", cost_usd=0.25, input_tokens=34, output_tokens=1),
        {"type": "message", "text": "Fixed."},
        {"type": "completion", "status": "completed", "final_text": "Fixed."},
        {"type": "status", "status": "idle"},
    )
    assert lines == [
        "> Fix it",
        "I look at it.",
        "▸ bash ls -la",
        "  a\n  b",
        "Fixed.",
        "done · 12 s · 1,234 + 6 tokens · $0.50",
    ]


def test_an_error_stands_once() -> None:
    lines = told(
        BEGIN,
        {"type": "error", "message": "no such model"},
        {"type": "completion", "status": "failed", "final_text": "no such model"},
    )
    assert lines == ["> Fix it", "error: no such model", "failed · 2 s"]
    lines = told(BEGIN, {"type": "completion", "status": "failed", "final_text": "it is gone"})
    assert lines == ["> Fix it", "error: it is gone", "failed · 1 s"]


def test_a_message_that_the_end_of_the_turn_cuts_is_shown_as_far_as_it_came() -> None:
    lines = told(
        BEGIN,
        {"type": "delta", "text": "I beg"},
        {"type": "completion", "status": "interrupted", "final_text": None},
    )
    assert lines == ["> Fix it", "I beg", "interrupted · 2 s"]
    whole = {"type": "completion", "status": "completed", "final_text": "I begin"}
    assert told({"type": "delta", "text": "I begin"}, whole) == ["I begin", "done"]


def test_a_permission_is_a_question_and_who_answered_it() -> None:
    request = {"type": "permission_request", "request_id": "1", "text": "run rm"}
    settled = {"type": "permission_settled", "request_id": "1", "decision": "allow"}
    lines = told(
        {**request, "tool_call": {"command": "rm"}},
        {**settled, "by": "operator", "reason": "the caller decided"},
        {**settled, "decision": "deny", "reason": "the deadline has passed"},
    )
    assert lines == [
        '? The agent asks: run rm\n  {"command": "rm"}',
        "allowed by operator",
        "denied: the deadline has passed",
    ]


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (system("retry", attempt=2, message="503"), "asks the model again (2): 503"),
        (system("not_resumed", reason="it is gone"), "it is gone"),
        (
            system("stage", stage="image", state="failed", elapsed_ms=1, error="no disk"),
            "no disk",
        ),
        ({"type": "status", "status": "timed_out", "reason": "an hour"}, "timed out: an hour"),
        (
            {"type": "snapshot", "ref": "r", "files": 2, "insertions": 3, "deletions": 1},
            "2 files changed, +3 -1",
        ),
        (
            {
                "type": "caller_tool_settled",
                "request_id": "1",
                "tool": "sell",
                "outcome": "caller_gone",
                "error": "the caller is gone",
            },
            "sell: the caller is gone",
        ),
        ({"type": "message", "ref": {}, "size": 70000}, "message of 70,000 bytes"),
        ({"type": "later", "more": 1}, 'later {"more": 1}'),
    ],
)
def test_what_a_person_wants_to_know_of_is_a_line(event: dict[str, Any], text: str) -> None:
    (line,) = told(event)
    assert text in line


@pytest.mark.parametrize(
    "event",
    [
        system("turn_started"),
        system("agent_thought_chunk", content={"text": "hm"}),
        {"type": "system", "raw": "noise"},
        {"type": "status", "status": "idle"},
        {"type": "snapshot", "ref": "r", "files": 2, "moment": "start"},
        {"type": "caller_tool_request", "request_id": "1", "tool": "sell"},
        {"type": "caller_tool_settled", "request_id": "1", "outcome": "result"},
    ],
)
def test_the_rest_is_no_line(event: dict[str, Any]) -> None:
    assert told(event) == []


def test_what_it_does_at_the_moment_is_known() -> None:
    transcript = Transcript()
    doing = []
    for event in (
        BEGIN,
        system("stage", stage="image", state="progress", elapsed_ms=1, detail="40 %"),
        system("turn_started"),
        {"type": "tool_call", "call_id": "1", "tool": "bash"},
        {"type": "tool_result", "call_id": "1"},
        {"type": "session_map", "total": 9, "done": 3, "failed": 1},
        {"type": "permission_request", "request_id": "1"},
        {"type": "completion", "status": "completed"},
    ):
        transcript.passages(decode_event({"session_id": ROOT, **event}))
        doing.append(transcript.doing)
    assert doing == [
        "starts its agent",
        "fetches the image of its container, 40 %",
        "works",
        "calls bash",
        "works",
        "has 3 of 9 parts, 1 failed",
        "waits for a permission",
        "",
    ]


def test_children_stand_below_their_parents() -> None:
    transcript = Transcript()
    created = {"type": "status", "status": "created"}
    for event in (
        {**created, "session_id": ROOT},
        {**created, "session_id": CHILD, "parent_session_id": ROOT},
    ):
        transcript.passages(decode_event(event))
    (said,) = transcript.passages(
        decode_event({"type": "message", "text": "a", "session_id": CHILD})
    )
    assert (said.session_id, said.level) == (CHILD, 1)


def test_a_long_result_and_a_long_line_are_cut() -> None:
    text = "\n".join(["x" * 500, *map(str, range(99))])
    (shown,) = told({"type": "tool_result", "call_id": "1", "result": text, "is_error": True})
    first, *_, last = shown.splitlines()
    assert first.startswith("✗ x")
    assert len(first) == WIDTH + 2
    assert last.strip() == f"… {100 - LINES} more lines"


def test_no_control_character_of_an_agent_is_passed_on() -> None:
    evil = "a\x1b]0;owned\x07\x9b"
    lines = told(
        {"type": "message", "text": evil},
        {"type": evil},
        {"type": "tool_call", "call_id": "1", "tool": evil, "arguments": {"command": evil}},
        {"type": "tool_result", "call_id": "1", "result": evil},
        {"type": "permission_request", "request_id": "1", "text": evil},
    )
    assert len(lines) == 5
    assert not {"\x1b", "\x07", "\x9b"} & set("".join(lines))
