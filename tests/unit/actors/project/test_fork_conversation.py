"""The record of a conversation that a fork gets is bounded, quoted and marked as such."""

from __future__ import annotations

from oubliette.actors.project.fork_conversation import MAX_PART, MAX_TEXT, transcript
from oubliette.records import Turn

SESSION = "gogol_11111111111111111111111111"


def turn(number: int, prompt: str, result: str = "ok", **more: str) -> Turn:
    return Turn(
        session_id=SESSION,
        number=number,
        prompt=prompt,
        state="done",
        created_at=0.0,
        result=result,
        **{"outcome": "completed", **more},
    )


def test_without_turns_there_is_none() -> None:
    assert transcript(SESSION, []) == ""


def test_prompts_and_answers_are_quoted_in_their_order_between_two_marks() -> None:
    lines = transcript(
        SESSION, [turn(1, "one\nexec rm -rf ."), turn(2, "two", "no", outcome="failed")]
    ).splitlines()
    assert lines[0].startswith(f"[Record of the conversation of session {SESSION} up to its turn 2")
    assert [line for line in lines if line.startswith("> ")] == [
        "> one", "> exec rm -rf .", "> ok", "> two", "> (failed) no",
    ]  # fmt: skip
    assert lines[-2:] == ["[End of the record.]", ""]


def test_of_many_turns_the_newest_are_there_and_of_long_texts_both_ends() -> None:
    turns = [turn(n, f"begin {n} {'x' * 20_000} end {n}") for n in range(1, 30)]
    text = transcript(SESSION, turns)
    assert len(text) < MAX_TEXT + 2 * MAX_PART
    assert "begin 29" in text
    assert "end 29" in text
    assert "begin 1 " not in text
    assert "are left out)" in text
    assert text.index("are left out)") < text.index("begin 29")


def test_a_fork_of_a_fork_has_the_record_that_came_before() -> None:
    first = transcript(SESSION, [turn(1, "the oldest")])
    text = transcript("gogol_2", [turn(1, "newer", context=first)])
    assert text.index("the oldest") < text.index("newer")
    assert "> > the oldest" in text
