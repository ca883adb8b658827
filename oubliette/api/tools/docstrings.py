"""Docstrings in Google style: the description of a function and those of its parameters.

The docstring of a class describes its fields in the same way. Indentation decides what belongs
together, as in Python: the entries of a section stand deeper than its heading, and the lines of an
entry deeper than the entry. Text that fits no rule is description, so that a docstring of another
style loses nothing.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_PARAMETERS: Final = frozenset(
    {"args", "arguments", "attributes", "parameters", "keyword args", "keyword arguments"}
)
_OTHERS: Final = frozenset(
    {
        "example",
        "examples",
        "raises",
        "references",
        "return",
        "returns",
        "see also",
        "todo",
        "warns",
        "yield",
        "yields",
    }
)
"""Sections for the readers of code. Their text is left out: an agent has no use for it."""
_HEADING: Final = re.compile(r"([A-Za-z][A-Za-z ]*):")
_ENTRY: Final = re.compile(
    r"\*{0,2}`{0,2}([A-Za-z_]\w*)`{0,2}\s*(?:\((?P<kind>.*?)\))?\s*:(?!:)\s*"
)


class Docstring(NamedTuple):
    """The parts of a docstring that describe a tool, or a type, to an agent."""

    description: str
    """Text outside of sections, in paragraphs; empty without a docstring."""

    parameters: Mapping[str, str]
    """Descriptions of parameters or fields by name, each on one line."""


def parsed(text: str | None) -> Docstring:
    """Return the parts of the docstring `text`; None has none. Every text is accepted."""
    description: list[str] = []
    entries: list[str] = []
    section: list[str] | None = description
    for line in _lines(text or ""):
        if not line.startswith((" ", "\t")) and line.strip():
            section = description
            if name := _section(line.rstrip()):
                section = entries if name in _PARAMETERS else None
                continue
        if section is not None:
            section.append(line.rstrip())
    return Docstring(_paragraphs(description), _entries(entries))


def _lines(text: str) -> list[str]:
    """Return the lines without their common indentation, which the first line does not have."""
    first, *others = inspect.cleandoc(text).splitlines() or [""]
    below = next(filter(None, others), "")
    if _section(first) and not below.startswith(" ") and not _section(below):
        others = [f"    {line}" if line else line for line in others]  # all are of its section
    return [first, *others]


def _section(line: str) -> str:
    """Return the section that begins with `line`, in lower case; empty if none does."""
    heading = _HEADING.fullmatch(line)
    name = heading[1].lower() if heading else ""
    return name if name in _PARAMETERS | _OTHERS else ""


def _paragraphs(lines: list[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _entries(lines: list[str]) -> dict[str, str]:
    """Return the descriptions of a section's entries; a first one wins over a repeated one."""
    found: dict[str, list[str]] = {}
    words: list[str] | None = None
    own = min((_depth(line) for line in lines if line), default=0)
    for line in lines:
        entry = _ENTRY.match(line.strip()) if line and _depth(line) == own else None
        if entry is not None:
            words = [line.strip()[entry.end() :]]
            found.setdefault(entry[1], words)
        elif words is not None:
            words.append(line.strip())
    return {
        name: text for name, words in found.items() if (text := " ".join(" ".join(words).split()))
    }


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
