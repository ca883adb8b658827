"""`oubliette init`: what it finds, what it asks, and what it writes and makes of the answers."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pexpect
import pytest

from oubliette.api import control
from oubliette.cli.setup.init import SECRETS
from oubliette.config.loader import load
from tests.unit.cli.command_line import Run

FIRST_WORDS = ["init"]


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HOME of a user who has no agent, no client and no key."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in (*SECRETS, "XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def opencode(user: Path) -> Path:
    """An agent that is installed."""
    program = user / "bin" / "opencode"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("".join(f"{line}\n" for line in lines)))


def test_without_a_terminal_it_asks_nothing_and_names_the_way(run: Run, home: Path) -> None:
    done = run()
    assert (done.code, done.out) == (2, "")
    assert "oubliette init --yes" in done.err
    assert list(home.iterdir()) == []


def test_the_defaults_are_what_is_there(
    run: Run, home: Path, opencode: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "hunter2")
    done = run("--yes")
    assert done.code == 0, done.err
    assert done.out.startswith("oub_tok_")
    assert done.out.count("\n") == 1
    assert str(opencode) in done.err
    config = load(home, {}).config
    assert config.agents.default == "opencode"
    assert config.opencode.env == ("ANTHROPIC_API_KEY=env:ANTHROPIC_API_KEY",)
    text = (home / "oubliette.toml").read_text()
    assert "hunter2" not in text + done.err
    assert "# TCP port; 0 picks a free one.\nport = 8080\n" in text
    assert "# auto, scripted, opencode" in text


def test_without_an_agent_the_remedy_is_named(run: Run, home: Path) -> None:
    done = run("--yes", "-o", "json")
    assert done.code == 0
    assert "npm install -g opencode-ai" in done.err
    assert load(home, {}).config.agents.default == "auto"
    told = json.loads(done.out)
    assert told["token"].startswith(f"oub_{told['token_id']}_")
    assert (told["written"], told["client"]) == (True, None)
    assert told["file"] == str(home / "oubliette.toml")


def test_answers_are_written(
    run: Run, home: Path, user: Path, opencode: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2")
    (user / ".cursor").mkdir()
    (user / ".cursor" / "mcp.json").write_text('{"mcpServers": {}}')
    typed(monkeypatch, "droid", "scripted", "cursor")
    done = run()
    assert done.code == 0, done.err
    assert "'droid' is not one of: scripted, opencode" in done.err
    assert load(home, {}).config.agents.default == "scripted"
    entries = json.loads((user / ".cursor" / "mcp.json").read_text())["mcpServers"]
    own = entries["oubliette"]["headers"]["Authorization"]
    assert done.out.startswith("oub_tok_")
    assert done.out.strip() not in own
    (home / "oubliette.toml").unlink()
    typed(monkeypatch, "opencode", "openai/gpt-x", "n", "none")
    assert run().code == 0
    config = load(home, {}).config
    assert (config.opencode.model, config.opencode.env) == ("openai/gpt-x", ())


@pytest.mark.parametrize("words", [("--yes",), ()])
def test_an_existing_file_is_kept_by_default(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    file = home / "oubliette.toml"
    file.write_text("[server]\nport = 1\n")
    typed(monkeypatch, "")
    done = run(*words, "-o", "json")
    assert (done.code, file.read_text()) == (0, "[server]\nport = 1\n")
    assert json.loads(done.out)["written"] is False
    assert f"{file} is kept." in done.err


def test_an_existing_file_is_replaced_if_the_user_wants_that(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home / "oubliette.toml"
    file.write_text("[server\n")
    monkeypatch.setattr(control, "status_of", lambda _: {"pid": 77})
    typed(monkeypatch, "y")
    done = run()
    assert done.code == 0
    assert "process 77" in done.err
    assert load(home, {}).config.server.port == 8080


def test_who_goes_away_at_a_question_has_changed_nothing(
    run: Run, home: Path, opencode: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch)
    done = run()
    assert (done.code, done.out) == (1, "")
    assert list(home.iterdir()) == []


def test_a_second_time_no_key_is_made(run: Run, home: Path) -> None:
    first = json.loads(run("--yes", "-o", "json").out)
    second = run("--yes", "-o", "json")
    assert first["token"]
    assert json.loads(second.out)["token"] is None
    assert "oubliette token list" in second.err


@pytest.mark.whole
def test_a_person_at_a_terminal_is_led_through(
    home: Path, user: Path, opencode: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {
        "HOME": str(user),
        "PATH": str(user / "bin"),
        "OUBLIETTE_HOME": str(home),
        "OPENAI_API_KEY": "hunter2",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    (user / ".codex").mkdir()
    (user / ".codex" / "config.toml").write_text("# mine\n")
    words = ["-m", "oubliette.cli.main", "init"]
    terminal = pexpect.spawn(
        sys.executable, words, env=environ, timeout=60, encoding="utf-8", dimensions=(24, 100)
    )
    try:
        terminal.expect(r"Agent of sessions that name none \[opencode\]:")
        terminal.sendline("")
        terminal.expect("Model of opencode.*:")
        terminal.sendline("openai/gpt-x")
        terminal.expect(r"Give opencode OPENAI_API_KEY of this shell\? \[Y/n\]:")
        terminal.sendline("")
        terminal.expect(r"MCP client to set up \(opencode, codex or none\) \[none\]:")
        terminal.sendline("codex")
        terminal.expect("oub_tok_[a-z0-9]{26}_")
        terminal.expect("Next: oubliette run")
        terminal.expect(pexpect.EOF)
    finally:
        terminal.close(force=True)
    assert terminal.exitstatus == 0
    assert load(home, {}).config.opencode.model == "openai/gpt-x"
    assert "mcp_servers.oubliette" in (user / ".codex" / "config.toml").read_text()
    assert not os.path.exists(user / ".oubliette")
