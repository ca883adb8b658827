"""`oubliette permit`: what agents ask permission for, and the answer to it."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from oubliette.cli.client import tools
from oubliette.cli.terminal import output
from oubliette.errors import NotFound
from tests.unit.cli.command_line import Run

FIRST_WORDS = ["permit"]
REQUEST = "5f0c9a1e-8d4b-4f57-9d27-0000000abcd"
ONE, TWO = "gogol_01m8dbmeqzrs00000000000001", "gogol_01m8dbmeqzrs00000000000002"


def request(session: str, number: int) -> dict[str, Any]:
    return {
        "session_id": session,
        "request_id": f"{REQUEST}{number}",
        "asks_for": f"bash: make {number}\nsecond line",
        "text": None,
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


class Person(io.StringIO):
    """Answers to come, at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def follows(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The answers that reach the server, on which a second request comes, before Ctrl-C."""
    answers: list[Any] = []
    waits = [0]

    def call(_: object, tool: str, given: dict[str, Any], *__: object) -> dict[str, Any]:
        match tool:
            case "permission_list":
                open_ones = [request(ONE, 1), request(TWO, 2)][: 1 + waits[0]]
                return {"permissions": open_ones, "more": False}
            case "event_list" if given.get("wait_seconds"):
                waits[0] += 1
                if waits[0] > 1:
                    raise KeyboardInterrupt
                return {"next": 8}
            case "event_list":
                return {"next": 7}
            case _:
                answers.append(given)
                if given["decision"] == "deny":
                    raise NotFound("it is decided already")
                return {"accepted": True}

    monkeypatch.setattr(tools.HomeServer, "call", call)
    return answers


def test_each_request_is_asked_about_when_it_comes(
    run: Run, follows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Person("s\nn\n"))
    done = run("--follow", "--notify")
    assert done.code == 130, done.err
    answered = [(each["session_id"], each["decision"], each["remember"]) for each in follows]
    assert answered == [(ONE, "allow", "session"), (TWO, "deny", "once")]
    assert "000001 asks: bash: make 1" in done.err
    assert "not decided here: it is decided already" in done.err
    assert "\a" not in done.err  # it is no terminal


def test_requests_that_come_are_lines_in_a_pipe_and_those_of_others_left_out(
    run: Run, follows: list[Any]
) -> None:
    done = run("--follow")
    assert done.out == "".join(
        f"{session}\t{REQUEST}{n}\tbash: make {n}\n" for session, n in ((ONE, 1), (TWO, 2))
    )
    assert run("--follow", "--deny").code == 2
    assert follows == []


@pytest.mark.parametrize(
    ("environ", "command"),
    [
        ({"TERM": "xterm-256color"}, "\x1b]9;Oubliette: make, ls\x1b\\"),
        ({"TERM": "foot"}, "\x1b]777;notify;Oubliette;make, ls\x1b\\"),
        ({"TERM": "xterm", "VTE_VERSION": "7600"}, "\x1b]777;notify;Oubliette;make, ls\x1b\\"),
        ({"TERM": "linux"}, ""),
    ],
)
def test_a_terminal_rings_and_shows_it_on_the_desktop_as_far_as_it_can(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], command: str
) -> None:
    monkeypatch.delenv("VTE_VERSION", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    terminal = Person()
    monkeypatch.setattr(sys, "stderr", terminal)
    output.ring("make;\n ls")
    assert terminal.getvalue() == f"\a{command}"


def test_a_decision_without_a_session_is_refused(run: Run, asked: list[Any]) -> None:
    assert run("--deny").code == 2
    assert run("gogol_none").code in {2, 3}
    assert asked == []
