"""Tables of the command line, as a terminal gets them."""

from __future__ import annotations

import io

import pytest

from oubliette.cli.terminal.output import print_table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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
