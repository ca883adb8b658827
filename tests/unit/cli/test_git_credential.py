"""git's question for a key is answered for the one server that is meant, and for no other host."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.command_line import Done, Run

FIRST_WORDS = ("git-credential",)
KEY = "oub_" + "k" * 40


@pytest.fixture
def ask(run: Run, monkeypatch: pytest.MonkeyPatch):
    def ask_(host: str, action: str = "get", *words: str, protocol: str = "https") -> Done:
        question = f"protocol={protocol}\nhost={host}\nwwwauth[]=Basic\n\n"
        monkeypatch.setattr(sys, "stdin", io.StringIO(question))
        return run(action, *words)

    return ask_


@pytest.fixture
def elsewhere(tmp_path: Path) -> tuple[str, ...]:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    return "--url", "https://oub.example:8443/mcp", "--key-file", str(file)


def test_the_key_of_a_server_elsewhere_goes_to_that_server_alone(ask, elsewhere) -> None:
    found = ask("oub.example:8443", "get", *elsewhere)
    assert found.out == f"username=oub\npassword={KEY}\n"
    shown = json.loads(ask("oub.example:8443", "get", *elsewhere, "-o", "json").out)
    assert shown == {"username": "oub", "password": KEY}
    for host in ("oub.example", "github.com", "oub.example:8444", "oub.example.org:8443", ""):
        assert ask(host, "get", *elsewhere) == (0, "", ""), host
    assert ask("oub.example:8443", "get", *elsewhere, protocol="http") == (0, "", "")


@pytest.mark.parametrize(
    "host", ["127.0.0.2:8080", "[::1]:8080", "localhost:8080", "p1-0123456789.localhost:8080"]
)
def test_another_name_of_this_machine_gets_no_key(ask, elsewhere, host: str) -> None:
    """An agent can listen there, and bring somebody's git to it by a submodule."""
    words = ("--url", "http://127.0.0.1:8080/mcp", *elsewhere[2:])
    assert KEY in ask("127.0.0.1:8080", "get", *words, protocol="http").out
    done = ask(host, "get", *words, protocol="http")
    assert (done.code, done.out) == (0, "")
    assert "the server is at http://127.0.0.1:8080" in done.err


def test_the_key_may_be_in_the_environment(ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUBLIETTE_URL", "https://oub.example")
    monkeypatch.setenv("OUBLIETTE_KEY", KEY)
    assert f"password={KEY}\n" in ask("oub.example").out
    monkeypatch.delenv("OUBLIETTE_KEY")
    done = ask("oub.example")
    assert (done.code, done.out) == (4, "")
    assert "OUBLIETTE_KEY" in done.err


def test_nothing_is_kept_or_forgotten(ask, elsewhere) -> None:
    for action in ("store", "erase", "an action of a later git"):
        assert ask("oub.example:8443", action, *elsewhere) == (0, "", "")


def test_hosts_of_other_machines_are_none_of_a_homes_business(ask) -> None:
    assert ask("github.com") == (0, "", "")
    done = ask("127.0.0.1:8080", protocol="http")
    assert (done.code, done.out) == (8, "")
    assert "no server runs on" in done.err


def test_a_host_that_is_none_is_refused(ask, elsewhere) -> None:
    done = ask("oub.example:port", "get", *elsewhere)
    assert (done.code, done.out) == (2, "")
    assert "no valid port" in done.err
