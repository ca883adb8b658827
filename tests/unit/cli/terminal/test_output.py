"""Options of all commands, colours, JSON for odd encodings, and the pager."""

from __future__ import annotations

import io
import json
import pydoc
import sys

import pytest

from oubliette.cli.terminal import output, usage
from oubliette.cli.terminal.output import Colour, as_json, choose_colour, coloured, paged
from tests.unit.cli.command_line import Run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("given", "arranged", "colour"),
    [
        (["ps"], ["ps"], "auto"),
        (["--home", "x", "-o", "json", "ps", "-n", "3"], ["ps", "--home", "x", "-o", "json", "-n", "3"], "auto"),
        (["--home=x", "-ojson", "config", "get", "a"], ["config", "get", "--home=x", "-ojson", "a"], "auto"),
        (["ps", "--color", "never", "-n", "3"], ["ps", "-n", "3"], "never"),
        (["--color=always", "ps"], ["ps"], "always"),
        (["run", "--", "--color", "never"], ["run", "--", "--color", "never"], "auto"),
        (["exec", "3k9x", "ls", "--color", "no"], ["exec", "3k9x", "ls", "--color", "no"], "auto"),
        (["--color", "never", "container", "exec", "a", "--color"], ["container", "exec", "a", "--color"], "never"),
        (["--version"], ["--version"], "auto"),
        (["ps", "--color"], ["ps"], ""),
        ([], [], "auto"),
    ],
)  # fmt: skip
def test_options_of_all_commands_are_taken_before_and_behind_the_command(
    given: list[str], arranged: list[str], colour: str
) -> None:
    assert usage.arranged(given, {"config", "container"}) == (arranged, colour)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["ps", "-o", "json"], True),
        (["exec", "-o", "json", "3k9x", "ls"], True),
        (["exec", "-it", "--output=json", "3k9x", "ls"], True),
        (["exec", "3k9x", "kubectl", "get", "-o", "json"], False),
        (["exec", "-it", "-w", "/tmp", "3k9x", "ls", "-ojson"], False),
        (["exec"], False),
        ([], False),
    ],
)
def test_errors_are_json_where_the_command_is_asked_for_it_and_not_what_it_runs(
    given: list[str], wanted: bool
) -> None:
    assert usage.wants_json(given) is wanted


def test_a_command_has_them_in_both_places(run: Run) -> None:
    front = run("--color", "never", "-o", "json", "config", "get", "server.port")
    assert front.code == 0, front.err
    assert json.loads(front.out)["value"] == 8080
    assert run("config", "get", "server.port", "-o", "json", "--color=never") == front
    for words in (["--color", "red", "ps"], ["ps", "--color"]):
        assert "auto, always, never" in run(*words).err
    assert "--color" in run("--help").out


def test_a_choice_of_colours_holds_for_errors_in_a_pipe_and_for_programs_that_are_started(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[31merror:" in run("config", "get", "server.prt", "--color", "always").err
    assert run("config", "get", "server.prt").err.startswith("error:")
    monkeypatch.setenv("NO_COLOR", "1")
    choose_colour(Colour.auto)
    assert not coloured(Terminal())
    choose_colour(Colour.always)
    assert coloured(io.StringIO())
    choose_colour(Colour.never)
    assert not coloured(Terminal())
    choose_colour(Colour.auto)
    monkeypatch.delenv("NO_COLOR")
    assert coloured(Terminal())
    assert not coloured(io.StringIO())


def test_json_is_in_ascii_where_output_is_not_in_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_json("é") == '"é"'
    monkeypatch.setattr(output, "_ascii", False)
    latin = io.TextIOWrapper(io.BytesIO(), "latin-1")
    monkeypatch.setattr(sys, "stdout", latin)
    assert as_json("é→") == '"\\u00e9\\u2192"'
    output.choose(output.Format.json)
    output.choose(output.Format.json)
    output.print_json("é→")
    assert latin.buffer.getvalue() == b'"\\u00e9\\u2192"\n'  # type: ignore[attr-defined]


@pytest.mark.parametrize(("lines", "shown_by"), [(5, "terminal"), (40, "pager")])
def test_what_is_longer_than_the_terminal_is_shown_by_the_pager(
    monkeypatch: pytest.MonkeyPatch, lines: int, shown_by: str
) -> None:
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("LESS", "")
    seen: list[str] = []
    monkeypatch.setattr(pydoc, "pager", seen.append)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stdin", Terminal())
    text = "a line\n" * lines
    with paged() as to:
        to.write(text)
    assert (terminal.getvalue() or "".join(seen)) == text
    assert bool(seen) is (shown_by == "pager")
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    with paged() as to:
        assert to is pipe
