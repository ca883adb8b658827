"""The exit code and the output of a command that follows a turn to its end."""

from __future__ import annotations

from typing import Any

import pytest

from oubliette.cli.client import tools
from tests.unit.cli.command_line import Done, Run

SESSION = "gogol_01m8dbmeqzrs00000000000001"
ASKED = {"type": "permission_request", "request_id": "r1", "text": "sell the shop"}
ANSWERED = {"type": "permission_settled", "request_id": "r1", "decision": "allow"}


def limit(name: str) -> dict[str, Any]:
    return {"type": "error", "kind": "limit", "limit": name, "message": f"{name} is reached"}


def end(status: str) -> dict[str, Any]:
    return {"type": "completion", "status": status, "final_text": "Sold."}


def followed(run: Run, monkeypatch: pytest.MonkeyPatch, *events: dict[str, Any]) -> Done:
    """What comes of a message after which a session has these events, without a terminal."""

    def call(_: object, tool: str, *__: object, **___: object) -> dict[str, Any]:
        if tool == "session_message":
            return {"session_id": SESSION, "resumed": False, "last_index": 4}
        return {
            "events": [
                {"session_id": SESSION, "index": 5 + n, "ts": 0.0, **each}
                for n, each in enumerate(events)
            ],
            "truncated_before": None,
            "last_index": 5 + len(events),
            "completed": events[-1]["type"] == "completion",
            "failed": events[-1].get("status") == "failed",
            "more": False,
        }

    monkeypatch.setattr(tools.HomeServer, "call", call)
    return run("session", "message", SESSION, "Sell the shop", "--follow")


def test_a_message_goes_to_the_newest_session_that_no_agent_has_started(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    newest = [
        {"session_id": f"{SESSION[:-1]}{n}", "parent_session_id": parent}
        for n, parent in ((3, SESSION), (2, None), (1, None))
    ]

    def call(_: object, tool: str, given: dict[str, Any], *__: object, **___: object) -> Any:
        if tool == "session_list":
            assert given["newest_first"]
            return {"sessions": newest, "next_cursor": None}
        sent.append(given)
        return {"session_id": SESSION, "resumed": False, "last_index": 4}

    monkeypatch.setattr(tools.HomeServer, "call", call)
    assert run("session", "message", "--last", "Go on").code == 0
    assert sent == [{"session_id": f"{SESSION[:-1]}2", "message": "Go on"}]
    newest.clear()
    assert run("session", "message", "--last", "Go on").code == 3
    for words in (["Go on"], ["--last", SESSION, "Go on"]):
        assert run("session", "message", *words).code == 2


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ((end("completed"),), 0),
        ((end("failed"),), 1),
        ((end("interrupted"),), 1),
        ((limit("max_turn_seconds"), end("interrupted")), 124),
        ((limit("max_wall_seconds"), end("failed")), 124),
        ((limit("max_cost_usd"), end("interrupted")), 6),
        ((limit("max_cost_usd"), {"type": "status", "status": "running"}, end("failed")), 1),
        ((limit("max_turn_seconds"), end("completed")), 0),
        ((ASKED, ANSWERED, end("completed")), 0),
    ],
)
def test_the_exit_code_tells_how_the_turn_has_ended(
    run: Run, monkeypatch: pytest.MonkeyPatch, events: tuple[dict[str, Any], ...], code: int
) -> None:
    done = followed(run, monkeypatch, *events)
    assert done.code == code, done.err
    assert done.out == ("Sold.\n" if code == 0 else "")


def test_a_question_without_a_terminal_ends_the_command_and_names_what_answers_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = followed(run, monkeypatch, ASKED)
    assert (done.code, done.out) == (9, "")
    assert "The agent asks: sell the shop" in done.err
    assert f"oubliette permit {SESSION}" in done.err
