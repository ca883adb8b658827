"""What clients without a secret are told of a session: one outcome, where they look for it."""

from __future__ import annotations

from typing import Any

from oubliette.actors.agent_requests.session_events import first_form
from oubliette.records import Turn


def page(*events: dict[str, Any], completed: bool = True, **more: Any) -> dict[str, Any]:
    numbered = [{"index": place + 1, **event} for place, event in enumerate(events)]
    answer = {"events": numbered, "last_index": len(events), "completed": completed}
    return {**answer, "failed": False, "final_response": None, **more}


def turn(outcome: str, result: str | None) -> Turn:
    return Turn(
        session_id="s",
        number=2,
        prompt="p",
        state="done",
        created_at=0.0,
        outcome=outcome,
        result=result,
    )


def test_while_a_turn_runs_nothing_can_be_taken_for_its_answer() -> None:
    told = first_form(
        page({"type": "message", "text": "wait"}, {"type": "delta"}, completed=False), None
    )
    assert [each["type"] for each in told["events"]] == ["delta"]
    assert (told["completed"], told["failed"]) == (False, False)


def test_the_answer_of_the_last_turn_is_the_only_message() -> None:
    earlier = {"type": "message", "text": "of the turn before"}
    told = first_form(page(earlier, {"type": "completion"}), turn("completed", "the answer"))
    assert told["events"] == [
        {"type": "completion", "index": 2},
        {"type": "message", "index": 2, "role": "assistant", "text": "the answer"},
    ]
    assert (told["completed"], told["failed"]) == (True, False)


def test_an_answer_beyond_the_page_is_told_all_the_same() -> None:
    told = first_form(page(), turn("completed", "the answer"))
    assert [each["text"] for each in told["events"]] == ["the answer"]


def test_a_turn_that_did_not_complete_failed_with_a_reason() -> None:
    broken = first_form(page({"type": "error", "message": "out of luck"}), turn("failed", "x"))
    assert (broken["completed"], broken["failed"]) == (False, True)
    assert [each["text"] for each in broken["events"]] == ["out of luck"]
    stopped = first_form(page(), turn("interrupted", None))
    assert [each["text"] for each in stopped["events"]] == ["the turn interrupted"]
    assert stopped["failed"]
    gone = first_form(page(failed=True), None)
    assert [each["text"] for each in gone["events"]] == ["the turn failed"]
