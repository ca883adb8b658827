"""Tables of the command line, as a terminal gets them."""

from __future__ import annotations

import io
import re

import pytest

from oubliette.cli.terminal.output import print_table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int, head: list[str], *rows: list[object]
) -> list[str]:
    """The lines of a table, as a terminal of this width has them."""
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    print_table(head, rows)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    return [line.rstrip() for line in plain.splitlines()]


HEAD = ["SESSION", "STATUS", "NONE", "WAITS FOR", "TITLE"]
ONE, TWO = "gogol_01m8fj0sf6qazjq1s5x0c55v6r", "gogol_01m8fj0sf6qazjq1s5x1c55v6r"


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_row_is_one_line_that_fits_and_has_the_end_of_the_id(
    monkeypatch: pytest.MonkeyPatch, no_color: str
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    row: list[object] = [ONE, "running", None, "a decision on something", "x" * 90]
    head, line = on_a_terminal(monkeypatch, 80, HEAD, row)
    assert head.split() == ["SESSION", "STATUS", "WAITS", "FOR", "TITLE"]
    assert line.split()[0] == "c55v6r"
    assert "a decision on something" in line
    assert line.endswith("x…")
    assert len(line) == 80


def test_ids_with_the_same_end_are_shown_as_far_as_they_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: list[list[object]] = [[ONE, "idle"], [f"  {TWO}", "idle"]]
    _, *lines = on_a_terminal(monkeypatch, 80, ["SESSION", "STATUS"], *rows)
    assert [line.split()[0] for line in lines] == ["0c55v6r", "1c55v6r"]
    assert lines[1].startswith("  1c55v6r")


def test_a_terminal_that_is_too_narrow_wraps_lines_and_cuts_no_id_and_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row: list[object] = ["2026-11-27 22:29:06Z", ONE, "w" * 40, "t" * 40]
    _, line = on_a_terminal(monkeypatch, 30, ["WHEN", "SESSION", "WAITS FOR", "TITLE"], row)
    assert line.split() == ["2026-11-27", "22:29:06Z", "c55v6r", "w" * 11 + "…", "t" * 11 + "…"]


def test_ids_and_texts_are_whole_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    print_table(["SESSION", "TITLE"], [[ONE, "t" * 40]], whole=True)
    assert terminal.getvalue().splitlines()[1].split() == [ONE, "t" * 40]


@pytest.mark.parametrize(
    "cell", [r"\[red]x[/red]", "[link=http://a.test]b[/link]", r"\\[bold]", ":bomb:", "[/]", "a["]
)
def test_what_an_agent_wrote_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch, cell: str) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    print_table(["NAME"], [[cell]])
    assert terminal.getvalue().splitlines()[1].rstrip() == cell
