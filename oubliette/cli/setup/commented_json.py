"""Changes of single values in a JSON file with comments, which stay with all other characters.

Editors and agents have such files (`// comment`, `/* comment */`, commas at the end of a list),
and write them by hand as often as by program.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from oubliette.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLANK: Final = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
"""Blanks and comments."""
_INDENT: Final = re.compile(r"\n([ \t]+)[\"}]")
_SCALARS: Final = json.JSONDecoder()
_BY_HAND: Final = "change it in an editor; --print shows what belongs there"
_DEEPEST: Final = 200


class _Node(NamedTuple):
    """A value, and its place in the text."""

    value: Any
    start: int
    end: int
    members: dict[str, _Member] | None = None
    """Of an object."""


class _Member(NamedTuple):
    start: int
    node: _Node


def parsed(text: str) -> dict[str, Any]:
    """Return the object that the text contains; an empty one if it is empty.

    Raises:
        ConfigError: it contains something else.
    """
    return cast("dict[str, Any]", _document(text).value) if text.strip() else {}


def with_value(text: str, words: Sequence[str], value: object) -> str:
    """Return the text with a value under these names of objects and of its own.

    Raises:
        ConfigError: the text is no object, or something on the way is none.
    """
    if not text.strip():
        return json.dumps(_nested(words, value), indent=2, ensure_ascii=False) + "\n"
    root = node = _document(text)
    wanted = part = json.loads(json.dumps(root.value))
    depth = 1
    while depth < len(words) and node.members and words[depth - 1] in node.members:
        part = part[words[depth - 1]]
        node = node.members[words[depth - 1]].node
        depth += 1
    if node.members is None:
        raise ConfigError(f"{words[depth - 2]} is no object", hint=_BY_HAND)
    name, value = words[depth - 1], _nested(words[depth:], value)
    part[name] = value
    found = _INDENT.search(text)
    unit = found[1] if found else "  "
    line = "\n" + unit * depth
    body = json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", line)
    there = node.members.get(name)
    if there is not None:
        changed = text[: there.node.start] + body + text[there.node.end :]
    else:
        changed = _inserted(text, node, f"{line}{json.dumps(name)}: {body}", line[: -len(unit)])
    return _checked(changed, wanted)


def without(text: str, words: Sequence[str]) -> str:
    """Return the text without the value under these names, which has to be there.

    Raises:
        ConfigError: the text is no object.
    """
    root = node = _document(text)
    wanted = part = json.loads(json.dumps(root.value))
    for word in words[:-1]:
        assert node.members is not None
        part, node = part[word], node.members[word].node
    assert node.members is not None
    del part[words[-1]]
    member = node.members[words[-1]]
    start, end = member.start, member.node.end
    comma = _skip(text, end)
    if text[comma] == ",":
        text = text[:comma] + text[comma + 1 :]
    else:
        before = [each for each in node.members.values() if each.start < start]
        if before:
            comma = _skip(text, before[-1].node.end)
            text = text[:comma] + text[comma + 1 :]
            start, end = start - 1, end - 1
    blanks = len(text[:start]) - len(text[:start].rstrip(" \t"))
    if text[: start - blanks].endswith("\n"):
        start -= blanks + 1
    return _checked(text[:start] + text[end:], wanted)


def _inserted(text: str, node: _Node, line: str, closing: str) -> str:
    """Return the text with a line more at the end of an object, after all comments in it."""
    assert node.members is not None
    last = max((each.node.end for each in node.members.values()), default=node.start + 1)
    inside = text[last : node.end - 1]
    kept = inside.rstrip()
    has_comma = bool(node.members) and text[_skip(text, last)] == ","
    comma = "," if node.members and not has_comma else ""
    tail = inside[len(kept) :] if "\n" in inside[len(kept) :] else closing
    line += "," * has_comma  # as the file has it
    return f"{text[:last]}{comma}{kept}{line}{tail}{text[node.end - 1 :]}"


def _nested(words: Sequence[str], value: object) -> object:
    for word in reversed(words):
        value = {word: value}
    return value


def _checked(text: str, wanted: object) -> str:
    """Return a changed text, if it has what was meant to be in it and nothing else."""
    if _document(text).value != wanted:
        raise ConfigError("the file is written in a way that cannot be changed", hint=_BY_HAND)
    return text


def _document(text: str) -> _Node:
    start = _skip(text, 1 if text.startswith("\ufeff") else 0)
    try:
        node = _node(text, start, 0)
        end = _skip(text, node.end)
        if end != len(text):
            raise json.JSONDecodeError("more after its end", text, end)  # noqa: TRY301
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"it is not JSON: {error.msg} (line {error.lineno}, column {error.colno})",
            hint=_BY_HAND,
        ) from error
    if node.members is None:
        raise ConfigError("it is JSON, but no object", hint=_BY_HAND)
    return node


def _node(text: str, start: int, depth: int) -> _Node:
    opening = text[start : start + 1]
    if opening not in {"{", "["}:
        value, end = _SCALARS.raw_decode(text, start)
        return _Node(value, start, end)
    if depth > _DEEPEST:
        raise json.JSONDecodeError("too many levels", text, start)
    closing = "}" if opening == "{" else "]"
    members: dict[str, _Member] = {}
    items: list[Any] = []
    at = _skip(text, start + 1)
    while text[at : at + 1] != closing:
        begin = at
        name: Any = None
        if opening == "{":
            name, end = _SCALARS.raw_decode(text, at)
            at = _skip(text, end)
            if not isinstance(name, str) or text[at : at + 1] != ":":
                raise json.JSONDecodeError("expecting a name and a colon", text, at)
            at = _skip(text, at + 1)
        node = _node(text, at, depth + 1)
        members[name] = _Member(begin, node)
        items.append(node.value)
        at = _skip(text, node.end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != closing:
            raise json.JSONDecodeError(f"expecting a comma or {closing}", text, at)
    if opening == "[":
        return _Node(items, start, at + 1)
    return _Node({key: each.node.value for key, each in members.items()}, start, at + 1, members)


def _skip(text: str, at: int) -> int:
    """The place behind blanks and comments."""
    found = _BLANK.match(text, at)
    assert found is not None
    return found.end()
