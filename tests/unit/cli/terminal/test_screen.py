"""A transcript on a terminal, as it is seen there, and in a pipe."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pyte
import pytest

from oubliette.api.events.decoding import decode_event
from oubliette.cli.terminal.screen import Screen

if TYPE_CHECKING:
    from oubliette.contract.events import Event

ROOT = "gogol_01m8dbmeqzrs00000000000001"
CHILD = "gogol_01m8dbmeqzrs00000000000002"
PROMPT = {"type": "status", "status": "running", "message": "Fix it"}
DONE = {"type": "completion", "status": "completed"}
LONG = "words of a sentence that is longer than eighty characters, and is wrapped between words"


class Terminal(io.StringIO):
    """A stream to a terminal of so many columns."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns
        self._screen = pyte.Screen(columns, 30)

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """What is seen there."""
        self._screen.reset()
        pyte.Stream(self._screen).feed(self.getvalue().replace("\n", "\r\n"))
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip().splitlines()


@pytest.fixture
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    columns = getattr(request, "param", 80)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "30")
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal(columns)


def event(session_id: str = ROOT, **fields: Any) -> Event:
    return decode_event({"session_id": session_id, "ts": 0.0, **fields})


@pytest.mark.parametrize("terminal", [80, 100, 160], indirect=True)
@pytest.mark.parametrize("no_color", ["", "1"])
def test_text_is_streamed_above_what_the_session_does(
    terminal: Terminal, no_color: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    with Screen(terminal) as screen:
        screen.show(event(**PROMPT))
        for piece in LONG.split(" "):
            screen.show(event(type="delta", text=piece + " "))
        screen.show(event(type="tool_call", call_id="1", tool="bash"))
        first, call, *text, status = terminal.lines
        assert (first, call) == ("> Fix it", "▸ bash")
        assert " ".join(text) == LONG
        assert len(text) == (2 if terminal.columns == 80 else 1)
        assert status.endswith("calls bash · 0 s")
        screen.show(event(type="message", text=f"{LONG}\n- `one`\n- two"))
        screen.show(event(**DONE, final_text=f"{LONG}\n- `one`\n- two"))
    said = terminal.lines
    assert " ".join(said).count("words of a sentence") == 1
    assert [line.split() for line in said[-3:]] == [
        ["•", "one"],
        ["•", "two"],
        ["done", "·", "0", "s"],
    ]
    assert "calls" not in " ".join(said)
    assert ("\x1b[2m" in terminal.getvalue()) or no_color


def test_a_question_has_the_terminal_for_itself(terminal: Terminal) -> None:
    with Screen(terminal) as screen:
        screen.show(event(**PROMPT))
        with screen.paused():
            terminal.write("Allow it? [y/N] ")
            assert terminal.lines == ["> Fix it", "Allow it? [y/N]"]
            terminal.write("y\n")
        screen.show(event(**DONE))
    assert terminal.lines == ["> Fix it", "Allow it? [y/N] y", "done · 0 s"]


def test_on_a_terminal_no_markup_or_control_character_of_an_agent_counts(
    terminal: Terminal,
) -> None:
    with Screen(terminal) as screen:
        screen.show(event(type="tool_call", call_id="1", tool="[bold]a", arguments={}))
        screen.show(event(type="message", text="\x1b]0;owned\x07 [link](https://example.com/x)"))
    assert "▸ [bold]a" in terminal.lines
    assert "owned\x07" not in terminal.getvalue()
    assert "\x1b]" not in terminal.getvalue()


def test_in_a_pipe_it_is_plain_lines_children_indented_below_their_names() -> None:
    pipe = io.StringIO()
    with Screen(pipe, named=True) as screen:
        for each in (ROOT, CHILD):
            parent = None if each == ROOT else ROOT
            created = {"type": "status", "status": "created", "parent_session_id": parent}
            screen.show(event(each, **created))
        screen.show(event(**PROMPT))
        screen.show(event(CHILD, type="message", text="a\nb"))
        screen.show(event(**DONE, final_text="c"))
    assert pipe.getvalue().splitlines() == [
        f"── {ROOT}",
        "> Fix it",
        f"  ── {CHILD}",
        "  a",
        "  b",
        f"── {ROOT}",
        "c",
        "done · 0 s",
    ]
