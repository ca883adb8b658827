"""Output of commands: results on stdout, everything else on stderr (docs/command-line.md)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.terminal.standard_streams import in_utf8, use_utf8
from oubliette.errors import AlreadyExists, OublietteError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from typing import IO

    from rich.console import Console
    from rich.table import Table

    Entry = dict[str, Any]
    Column = tuple[str, str | Callable[[Entry], object]]
    """Head of a column, and its cell: a field of an entry, or made of the entry."""


class Format(StrEnum):
    """Format of results."""

    text = "text"
    json = "json"


class Colour(StrEnum):
    """Use of colours."""

    auto = "auto"
    always = "always"
    never = "never"


SHORT: Final = 6
"""Characters of an id that a table shows on a terminal, where they differ."""
_NARROW, _TEXT = 12, 24
"""Width below which a table cuts no column, and that up to which one is no text that may be cut."""
_RUNG: Final = 120
"""Characters of a text on the desktop."""
_ID: Final = re.compile(
    r"( *)([a-z]+_[0-9a-z]{26}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII
)
"""A cell that is an id, perhaps indented."""

_chosen = Format.text
_colour = Colour.auto
_ascii = False
_without_notes = False


def choose(value: Format) -> Format:
    """Print in this format from now on."""
    global _chosen, _ascii
    _chosen = value
    if value is Format.json:
        _ascii = not use_utf8() or _ascii
    return value


def choose_colour(value: Colour) -> None:
    """Use colours like this from now on, here and in programs that are started."""
    global _colour
    _colour = value
    if value is Colour.never:
        os.environ["NO_COLOR"] = "1"
    elif value is Colour.always:
        os.environ.pop("NO_COLOR", None)


def coloured(stream: IO[str]) -> bool:
    """Whether what is written to this stream has colours."""
    return _colour is Colour.always or (stream.isatty() and not os.environ.get("NO_COLOR"))


Output = Annotated[
    Format,
    typer.Option(
        "--output", "-o", help="Format of the result: text, or json for programs.", callback=choose
    ),
]
Home = Annotated[
    str | None,
    typer.Option(
        "--home",
        envvar="OUBLIETTE_HOME",
        help="Folder of the server; unset: ./.oubliette if it exists, else ~/.oubliette.",
        show_default=False,
    ),
]


def home_option(home: str | None) -> str:
    """Return the option that a further command needs to use the same home, after a blank."""
    return "" if home in {None, os.environ.get("OUBLIETTE_HOME")} else f" --home {home}"


def is_json() -> bool:
    """Whether `-o json` was given."""
    return _chosen is Format.json


def print_json(value: Any) -> None:
    """Print one JSON document on one line, and flush."""
    sys.stdout.write(as_json(value) + "\n")
    sys.stdout.flush()


def as_json(value: Any) -> str:
    """One JSON document on one line, which a terminal can show: JSON itself escapes less.

    It is in ASCII where output is not in UTF-8.
    """
    ascii_only = _ascii or not in_utf8(sys.stdout)
    return escaped(json.dumps(value, ensure_ascii=ascii_only))


class _Screenful(io.StringIO):
    """Text for a terminal."""

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def paged() -> Generator[IO[str]]:
    """Yield where to write a result: what a terminal does not show at once is for its pager."""
    if not sys.stdout.isatty():
        yield sys.stdout
        return
    text = _Screenful()
    try:
        yield text
    finally:
        shown = text.getvalue()
        if shown.count("\n") < shutil.get_terminal_size().lines or not sys.stdin.isatty():
            sys.stdout.write(shown)
        else:
            import pydoc

            os.environ.setdefault("LESS", "-R")  # it shows colours as such
            pydoc.pager(shown)


def print_table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, whole: bool = False
) -> None:
    """Print a table: plain columns for a pipe; on a terminal drawn, with the ends of ids.

    A row is one line there: the last column, which is a text in most tables, is cut, and then other
    long texts. A column that is empty is left out.

    Args:
        head: Of each column.
        rows: Their cells.
        whole: Whether ids and texts are shown as they are, even if the terminal wraps them.
    """
    lines = [["" if cell is None else clean(str(cell)) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        sys.stdout.writelines("\t".join(line) + "\n" for line in [list(head), *lines])
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    ids = {found[2] for line in lines for cell in line if (found := _ID.fullmatch(cell))}
    length = SHORT
    while len({each[-length:] for each in ids}) < len(ids):
        length += 1
    if not whole:
        lines = [[_shortened(cell, length) for cell in line] for line in lines]
    used = [n for n in range(len(head)) if not n or not lines or any(line[n] for line in lines)]
    head, lines = [head[n] for n in used], [[line[n] for n in used] for line in lines]
    with paged() as to:
        _draw(Console(file=to), table, head, lines, whole=whole)


def _draw(
    console: Console, table: Table, head: list[str], lines: list[list[str]], *, whole: bool
) -> None:
    from rich.text import Text

    widths = _widths(head, lines, sys.maxsize if whole else console.width)
    for title, width in zip(head, widths, strict=True):
        table.add_column(title, no_wrap=True, overflow="ellipsis", width=width)
    # Where that is still too much the terminal wraps the lines, and no id is cut.
    console.width = max(console.width, sum(widths) + 2 * (len(widths) - 1))
    for line in lines:
        table.add_row(*map(Text, line))  # agents choose some of it: no markup
    console.print(table)


def _widths(head: Sequence[str], lines: Sequence[Sequence[str]], most: int) -> list[int]:
    """Return the widths of columns, two blanks apart: the last one gives way, then long texts."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(head, *lines, strict=True)]
    over = sum(widths) + 2 * (len(widths) - 1) - most
    last = len(widths) - 1
    texts = [column for column in range(last) if widths[column] > _TEXT]
    for column in (last, *sorted(texts, key=lambda each: -widths[each])):
        fewer = min(max(over, 0), max(widths[column] - _NARROW, 0))
        widths[column] -= fewer
        over -= fewer
    return widths


def _shortened(cell: str, length: int) -> str:
    found = _ID.fullmatch(cell)
    return cell if found is None else found[1] + found[2][-length:]


def print_entries(
    columns: Iterable[Column], entries: Iterable[Entry], *, whole: bool = False
) -> None:
    """Print entries that a tool has listed as a table; `whole` as for `print_table`."""
    cells = [cell for _, cell in columns]
    print_table(
        [head for head, _ in columns],
        [
            [each[cell] if isinstance(cell, str) else cell(each) for cell in cells]
            for each in entries
        ],
        whole=whole,
    )


def at(name: str, unset: str = "") -> Callable[[Entry], str]:
    """The cell of a time, which may be unset."""
    return lambda each: moment(each[name]) or unset


def line_of(name: str, length: int) -> Callable[[Entry], str]:
    """The cell of a text: the beginning of its first line."""
    return lambda each: (each[name] or "").partition("\n")[0][:length]


def print_fields(fields: dict[str, Any]) -> None:
    """Print `name: value` lines; unset values are left out.

    Text of several lines is printed below its name, indented and otherwise unchanged.
    """
    for name, value in fields.items():
        if value is None or value in ("", [], {}):
            continue
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
        said = clean(str(text))
        if "\n" in said:
            said = "".join(f"\n  {line}".rstrip(" ") for line in said.splitlines())
            sys.stdout.write(f"{name}:{said}\n")
        else:
            sys.stdout.write(f"{name}: {said}\n")


def print_error(error: OublietteError) -> None:
    """Print the error and its hint on stderr; as JSON with `-o json`.

    If stderr is full, or its reader is gone, the exit code is the only sign of it.
    """
    with contextlib.suppress(OSError):
        sys.stderr.write(_told(error))


def _told(error: OublietteError) -> str:
    if is_json():
        body = {"code": error.code, "message": error.message, "hint": error.hint}
        if isinstance(error, AlreadyExists) and error.existing_id is not None:
            body["existing_id"] = error.existing_id
        return as_json({"error": body}) + "\n"
    mark = "\x1b[31merror:\x1b[0m" if coloured(sys.stderr) else "error:"
    hint = f"hint: {clean(error.hint)}\n" if error.hint else ""
    return f"{mark} {clean(error.message)}\n{hint}"


def note(text: str) -> None:
    """Print a note for the user at the terminal, on stderr."""
    if not _without_notes:
        sys.stderr.write(clean(text) + "\n")


def ring(text: str) -> None:
    """Ring the bell of the terminal, and have it show a text on the desktop, if it can do that."""
    if not sys.stderr.isatty():
        return
    terminal = os.environ.get("TERM", "")
    shown = clean(" ".join(text.split()))[:_RUNG].replace(";", ",")
    command = ""
    if terminal.startswith(("rxvt", "foot")) or "VTE_VERSION" in os.environ:
        command = f"\x1b]777;notify;Oubliette;{shown}\x1b\\"
    elif terminal not in {"", "dumb", "linux"}:
        command = f"\x1b]9;Oubliette: {shown}\x1b\\"
    sys.stderr.write(f"\a{command}")
    sys.stderr.flush()


@contextlib.contextmanager
def without_notes() -> Generator[None]:
    """Print no notes in the block; errors are printed."""
    global _without_notes
    _without_notes = True
    try:
        yield
    finally:
        _without_notes = False


def confirm(question: str, *, yes: bool) -> None:
    """Have a person at a terminal confirm what deletes work; a program is not asked.

    Raises:
        typer.Exit: the answer is no.
    """
    if yes or is_json() or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not typer.confirm(question, err=True):
        note("Nothing was deleted.")
        raise typer.Exit(1)


def moment(seconds: float | None) -> str | None:
    """A time in UTC, for users."""
    if seconds is None:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


def clean(text: str) -> str:
    """Return `text` without terminal control characters: agents choose some of the printed text."""
    return _CONTROL.sub("�", text)


def escaped(text: str) -> str:
    """Return `text` with all control characters escaped as in JSON, line breaks too."""
    return _ANY_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_ANY_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
