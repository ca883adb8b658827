"""What sessions wait for, as sentences and as a tree."""

from __future__ import annotations

from typing import Any

import pytest

from oubliette.cli.terminal import output
from oubliette.cli.terminal.waiting import lines, sentence, span, tree


def wait(kind: str = "model", what: str = "the model of its agent", **more: Any) -> dict[str, Any]:
    nothing = ("since", "until", "detail", "session_id", "last_event_at")
    return {"kind": kind, "what": what, **dict.fromkeys(nothing), **more}


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-3, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (180000, "2 d")],
)
def test_durations_as_people_say_them(seconds: float, said: str) -> None:
    assert span(seconds) == said


def test_a_wait_is_a_sentence_with_its_times() -> None:
    told = sentence(wait(since=100.0, until=400.0, last_event_at=130.0), 160.0)
    assert told == (
        "It waits for the model of its agent, since 1970-01-01 00:01:40Z (60 s),"
        " last sign of life 30 s ago, until 1970-01-01 00:06:40Z (240 s left)."
    ).replace("240 s", "4 min")


def test_what_is_not_known_is_left_out() -> None:
    assert sentence(wait("child", "its child x"), 0.0) == "It waits for its child x."


def test_an_ended_session_waits_for_nothing() -> None:
    ended = wait("ended", "nothing: it has failed (so it is)", since=0.0)
    assert sentence(ended, 10.0) == ("It has failed (so it is), since 1970-01-01 00:00:00Z (10 s).")


def test_what_an_agent_asks_for_breaks_no_line_and_drives_no_terminal() -> None:
    told = sentence(wait("permission", "a decision on rm\n-rf \x1b[2J/"), 0.0)
    assert "\n" not in told
    assert "\x1b" not in told


def test_children_are_followed_and_each_is_told_once() -> None:
    sessions = {
        "a": [wait("child", "its child b", session_id="b"), wait("child", "c", session_id="c")],
        "b": [wait("child", "its child c", session_id="c", detail="more")],
        "c": [wait("child", "its child a", session_id="a")],
    }
    asked: list[str] = []

    def get(session_id: str) -> dict[str, Any]:
        asked.append(session_id)
        return {"status": "running", "waiting": sessions[session_id]}

    told = tree("a", get)
    assert asked == ["a", "b", "c"]
    assert told["waiting"][0]["session"]["waiting"][0]["session"]["session_id"] == "c"
    assert told["waiting"][1]["session"] is None
    assert [line.strip() for line in lines(told, 0.0)] == [
        "a is running.",
        "It waits for its child b.",
        "b is running.",
        "It waits for its child c.",
        "more",
        "c is running.",
        "It waits for its child a.",
        "It waits for c.",
    ]


def test_text_of_several_lines_keeps_them(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_fields({"id": "x", "prompt": "one\n\n  two\x1b\n", "none": None})
    assert capsys.readouterr().out == "id: x\nprompt:\n  one\n\n    two�\n"
