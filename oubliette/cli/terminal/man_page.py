"""Manual page of a document: its Markdown as the roff of man(7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from markdown_it import MarkdownIt

from oubliette.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

COMMANDS: Final = "command-line"
"""Document whose page is that of the command itself."""
_HEADINGS: Final = {"h2": ".SH "}
"""Tag of a heading → what begins it; that of all others is `.SS`."""
_FONTS: Final = {
    "strong_open": r"\fB",
    "em_open": r"\fI",
    "strong_close": r"\fR",
    "em_close": r"\fR",
}


def man_page(name: str, text: str) -> str:
    """Return the page of a document.

    Args:
        name: Of the document.
        text: In Markdown, with its title in the first line.
    """
    title, _, body = text.partition("\n")
    title = title.removeprefix("# ")
    page, section = ("oubliette", 1) if name == COMMANDS else (f"oubliette-{name}", 7)
    lines = [
        f'.TH "{page.upper()}" "{section}" "" "Oubliette {__version__}"',
        ".SH NAME",
        rf"{_plain(page)} \- {_plain(title)}",
        ".SH DESCRIPTION",
        *_lines(MarkdownIt("commonmark").enable("table").parse(body)),
    ]
    return "\n".join(lines) + "\n"


def _lines(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the lines of the blocks of a document."""
    lists: list[int] = []
    """Number of the next item of each list that is open; 0: its items have none."""
    begins = ""
    cells: list[str] | None = None
    rows = False
    for token in tokens:
        match token.type:
            case "heading_open":
                begins = _HEADINGS.get(token.tag, ".SS ")
            case "paragraph_open":
                begins = begins or ".PP\n"
            case "fence" | "code_block":
                shown = token.content.rstrip("\n").split("\n")
                yield from (".PP", ".RS 4", ".nf", *map(_line, map(_plain, shown)), ".fi", ".RE")
            case "bullet_list_open" | "ordered_list_open":
                lists.append(int(token.type.startswith("ordered")))
            case "bullet_list_close" | "ordered_list_close":
                lists.pop()
                begins = ".PP\n"
            case "list_item_open":
                begins = f".IP {lists[-1]}. 4\n" if lists[-1] else ".IP \\(bu 2\n"
                lists[-1] += bool(lists[-1])
            case "tbody_open":  # the heads of columns are left out
                rows = True
            case "table_close":
                rows, begins = False, ".PP\n"
            case "tr_open":
                cells = []
            case "tr_close" if cells is not None:
                if rows:
                    yield from (".TP", _line(cells[0]), _line("  ".join(filter(None, cells[1:]))))
                cells = None
            case "inline" if cells is not None:
                cells.append(_inline(token))
            case "inline":
                yield begins + _line(_inline(token))
                begins = ""
            case _:
                pass


def _inline(token: Token) -> str:
    """Return the text of a paragraph, with fonts; of links their text, of images none."""
    parts: list[str] = []
    for each in token.children or ():
        match each.type:
            case "text":
                parts.append(_plain(each.content))
            case "code_inline":
                parts.append(rf"\fB{_plain(each.content)}\fR")
            case "softbreak" | "hardbreak":
                parts.append(" ")
            case kind:
                parts.append(_FONTS.get(kind, ""))
    return "".join(parts)


def _plain(text: str) -> str:
    """Return a text in which roff sees no escapes, and no hyphens in place of minus signs."""
    return text.replace("\\", r"\e").replace("-", r"\-")


def _line(text: str) -> str:
    """Return a line in which roff sees no request; an empty one has no width."""
    return rf"\&{text}" if text[:1] in {"", ".", "'"} else text
