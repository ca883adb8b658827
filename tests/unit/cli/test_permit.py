"""`oubliette permit`: what agents ask permission for, and the answer to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oubliette.cli.client import tools
from tests.unit.cli.command_line import Run

FIRST_WORDS = ["permit"]
REQUEST = "5f0c9a1e-8d4b-4f57-9d27-0000000abcd"
ONE, TWO = "gogol_01m8dbmeqzrs00000000000001", "gogol_01m8dbmeqzrs00000000000002"


def request(session: str, number: int) -> dict[str, Any]:
    return {
        "session_id": session,
        "request_id": f"{REQUEST}{number}",
        "asks_for": f"bash: make {number}\nsecond line",
        "deadline": 0.0,
    }


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The answers that reach the server, on which three requests are open."""
    answers: list[Any] = []
    waiting = [request(ONE, 1), request(TWO, 2), request(TWO, 3)]

    def call(_: object, tool: str, given: dict[str, Any], *__: object) -> dict[str, Any]:
        if tool == "permission_list":
            return {"permissions": waiting, "more": True}
        answers.append(given)
        return {"accepted": True}

    monkeypatch.setattr(tools.HomeServer, "call", call)
    return answers


def test_without_a_session_all_requests_are_listed(run: Run, asked: list[Any]) -> None:
    done = run()
    assert done.out.splitlines()[1:3] == [
        f"{ONE}\t{REQUEST}1\t0 s\tbash: make 1",
        f"{TWO}\t{REQUEST}2\t0 s\tbash: make 2",
    ]
    assert "there are more" in done.err
    assert len(json.loads(run("-o", "json").out)["permissions"]) == 3
    assert asked == []


@pytest.mark.parametrize(
    ("words", "decision", "remember"),
    [
        ((), "allow", "once"),
        (("--deny",), "deny", "once"),
        (("--for-session",), "allow", "session"),
    ],
)
def test_the_only_request_of_a_session_is_decided(
    run: Run, asked: list[Any], words: tuple[str, ...], decision: str, remember: str
) -> None:
    done = run("00000001", *words)
    assert done.code == 0, done.err
    assert asked == [
        {"session_id": ONE, "request_id": f"{REQUEST}1", "decision": decision, "remember": remember}
    ]
    assert "bash: make 1" in done.err


def test_of_several_requests_one_has_to_be_named(run: Run, asked: list[Any]) -> None:
    several = run(TWO)
    assert (several.code, "choose one by its id" in several.err) == (2, True)
    assert run(TWO, "--request", "abcd9").code == 3
    assert run("gogol_01m8", "--request", "cd3").code == 2
    assert asked == []
    assert run(TWO, "--request", "abcd3").code == 0
    assert run(TWO, "--request", f"{REQUEST}2").code == 0
    assert [each["request_id"] for each in asked] == [f"{REQUEST}3", f"{REQUEST}2"]


def test_the_request_that_the_list_shows_is_decided_and_no_newer_one(
    run: Run, asked: list[Any]
) -> None:
    assert run("abcd2", "--deny").code == 0
    assert [(each["session_id"], each["request_id"]) for each in asked] == [(TWO, f"{REQUEST}2")]
    assert run("abcd4").code == 3


def test_a_decision_without_a_session_is_refused(run: Run, asked: list[Any]) -> None:
    assert run("--deny").code == 2
    assert run("gogol_none").code in {2, 3}
    assert asked == []
