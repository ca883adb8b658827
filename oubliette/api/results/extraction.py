"""Extraction of JSON texts from an answer that has prose, several fences or several values.

An answer is searched in this order, and the last text that is valid is taken at each step:

1. the whole answer,
2. its fenced code blocks,
3. objects and arrays between the prose, and the last line if it is a JSON value.

So an example before the result does no harm, nor does a footnote such as `[1]` after a fence. A
value that is malformed or cut off ends the search: neither a part of it nor an earlier value, which
may be an example, is taken for the result. In a block of another language it is no JSON at all.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_STARTS: Final = 5000
"""Brackets of one answer that are tried as the beginning of a value; the last ones count."""

_FENCE: Final = re.compile(r"[ \t]*(?P<mark>`{3,}(?!.*`)|~{3,})(?P<info>[^\n]*)")
_START: Final = re.compile(r"[{\[]")
_LIKE_JSON: Final = re.compile(r"\{\s*(?:[\"}]|$)|\[\s*(?:[\[{\"\]\-\d]|true|false|null|$)")
_SCANNER: Final = re.compile(r'[{}\[\]]|"(?:[^"\\\n]|\\.)*"?')
_DECODER: Final = json.JSONDecoder()


class Candidate(NamedTuple):
    """A text of an answer that may be the result."""

    text: str
    problem: str | None
    """Description of the error, if it is no JSON."""


def candidates(answer: str) -> Iterator[Candidate]:
    """Return the texts of an answer that may be the result, the likeliest first."""
    whole = answer.strip()
    if _problem(whole) is None:
        yield Candidate(whole, None)
        return
    fenced, prose = _fences(answer)
    for block in reversed(fenced):
        yield from _of_block(block.language, block.content.strip())
    line = prose.rstrip().rpartition("\n")[2].strip()
    if line and line[0] not in "{[" and _problem(line) is None:
        yield Candidate(line, None)
    yield from reversed(_values(prose))


class _Block(NamedTuple):
    """A fenced code block."""

    language: str
    content: str


def _of_block(language: str, content: str) -> Iterator[Candidate]:
    problem = _problem(content)
    if problem is None:
        yield Candidate(content, None)
        return
    found = _values(content)
    if language and not language.startswith("json"):
        found = [each for each in found if each.problem is None]
    elif language and not found:
        found = [Candidate(content, problem)]
    yield from reversed(found)


def _problem(text: str) -> str | None:
    """Return why a text is not one JSON value; None if it is."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"it is no JSON: {error.msg} in line {error.lineno}, column {error.colno}"
    except (RecursionError, ValueError) as error:
        return f"it is no JSON that can be read: {type(error).__name__}"
    return None


def _fences(answer: str) -> tuple[list[_Block], str]:
    """Return the fenced blocks, and the text without them; one that is open ends with the text."""
    fenced: list[_Block] = []
    prose: list[str] = []
    mark, language = "", ""
    block: list[str] = []
    for line in answer.splitlines(keepends=True):
        found = _FENCE.fullmatch(line.rstrip("\r\n"))
        if mark and _closes(line, mark):
            fenced.append(_Block(language, "".join(block)))
            mark = ""
        elif not mark and found is not None:
            mark, language, block = found["mark"], found["info"].strip().lower(), []
        else:
            (block if mark else prose).append(line)
    if mark:
        fenced.append(_Block(language, "".join(block)))
    return fenced, "".join(prose)


def _closes(line: str, mark: str) -> bool:
    """Return whether a line closes a block: the fence that opened it, or a longer one."""
    fence = line.strip()
    return fence.startswith(mark) and not fence.strip(mark[0])


def _values(text: str) -> list[Candidate]:
    """Return the objects and arrays of a text, in their order; malformed ones too."""
    found: list[Candidate] = []
    starts = [match.start() for match in _START.finditer(text)][-MAX_STARTS:]
    position = 0
    for start in starts:
        if start < position:
            continue
        try:
            _, position = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            if _LIKE_JSON.match(text, start):
                position = _end_of(text, start)
                found.append(Candidate(text[start:position], _reason(error)))
        else:
            found.append(Candidate(text[start:position], None))
    return found


def _end_of(text: str, start: int) -> int:
    """Return the end of a malformed value: its last bracket, or the end of the text."""
    depth = 0
    for token in _SCANNER.finditer(text, start):
        if token[0] in "{[":
            depth += 1
        elif token[0] in "}]":
            depth -= 1
            if depth == 0:
                return token.end()
    return len(text)


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"its JSON is malformed or incomplete: {error.msg}"
    return f"its JSON cannot be read: {type(error).__name__}"
