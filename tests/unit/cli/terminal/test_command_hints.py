"""Hints that servers write for callers of tools, at the command line."""

from __future__ import annotations

import typer
from typer.main import get_command

from oubliette.cli.main import app
from oubliette.cli.terminal.command_hints import COMMANDS, in_commands
from oubliette.tools.registry import TABLE


def test_each_of_them_is_a_tool_and_becomes_a_command_that_there_is() -> None:
    names = set(TABLE)
    root = get_command(app)
    for named, command in COMMANDS.items():
        assert named.split()[0] in names
        program, *words = [word for word in command.split() if word.islower()]
        assert program == "oubliette"
        found = root
        for word in words:
            if word.startswith("-") or word in names:
                break
            found = found.get_command(typer.Context(found), word)
            assert found is not None, command


def test_a_hint_names_commands() -> None:
    consent = in_commands("project_update with allow_push=true gives the consent")
    assert consent == "oubliette project update PROJECT --allow-push gives the consent"
    assert in_commands("end them with session_end") == "end them with oubliette session end"
    assert in_commands("oubliette call project_get") == "oubliette call project_get"
    assert in_commands("my_session_end") == "my_session_end"
    assert in_commands(None) is None
