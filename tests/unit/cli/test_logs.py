"""`oubliette logs`: the events of all sessions in their order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oubliette.cli.client import tools
from tests.unit.cli.command_line import Run

FIRST_WORDS = ["logs"]
SESSION = "gogol_01m8dbmeqzrs00000000000001"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What reaches the server, which has two pages, one of them without events."""
    calls: list[dict[str, Any]] = []
    event = {"type": "message", "session_id": SESSION, "index": 3, "seq": 9, "ts": 0.0, "text": "a"}

    def call(_: object, tool: str, given: dict[str, Any], *__: object) -> dict[str, Any]:
        assert tool == "event_list"
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        first = len(calls) == 1
        return {"events": [] if first else [event], "next": 7 + len(calls), "more": first}

    monkeypatch.setattr(tools.HomeServer, "call", call)
    return calls


def test_all_that_is_stored_is_printed_page_by_page(run: Run, asked: list[Any]) -> None:
    done = run("--type", "message", "--text", "a", "--after", "4")
    assert done.code == 0
    assert done.out.splitlines() == [f"── {SESSION}", "a"]
    assert [each["after"] for each in asked] == [4, 8]
    assert (asked[0]["types"], asked[0]["text"], asked[0]["session_id"]) == (["message"], "a", None)


def test_with_follow_it_waits_for_more_until_it_is_interrupted(run: Run, asked: list[Any]) -> None:
    done = run(SESSION, "--follow", "-o", "json")
    assert done.code == 130
    assert json.loads(done.out)["text"] == "a"
    assert [each["wait_seconds"] > 0 for each in asked] == [False, True, True]
    assert asked[-1]["session_id"] == SESSION
