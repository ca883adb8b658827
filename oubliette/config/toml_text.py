"""Changes of single values in the text of a TOML file, whose comments and order stay."""

from __future__ import annotations

import textwrap
import tomllib
from typing import TYPE_CHECKING, Any, Final, cast

from oubliette.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def with_value(text: str, words: Sequence[str], value: object) -> str:
    """Return the text with a value at these names of tables and of its key.

    Raises:
        ConfigError: the text is not TOML, or cannot be changed there.
    """
    import tomlkit

    wanted = parsed(text)
    _put(wanted, words, value)
    document = tomlkit.parse(text)
    part: Any = document
    for place, word in enumerate(words[:-1], 1):
        if word not in part:  # one that only holds tables has no line of its own
            above = place < len(words) - 1 or isinstance(value, dict)
            part[word] = tomlkit.table(is_super_table=above)
        part = part[word]
    part[words[-1]] = value
    return _checked(tomlkit.dumps(document), wanted)


def without(text: str, words: Sequence[str]) -> str:
    """Return the text without the key or table at these names, which has to be there.

    Raises:
        ConfigError: as `with_value`.
    """
    import tomlkit

    wanted = parsed(text)
    document = tomlkit.parse(text)
    for tree in (wanted, cast("dict[str, Any]", document)):
        part = tree
        for word in words[:-1]:
            part = part[word]
        del part[words[-1]]
    return _checked(tomlkit.dumps(document), wanted)


def _put(tree: dict[str, Any], words: Sequence[str], value: object) -> None:
    for word in words[:-1]:
        inner: object = tree.setdefault(word, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{word} is not a table", hint=_BY_HAND)
        tree = cast("dict[str, Any]", inner)
    tree[words[-1]] = value


def written(
    head: str,
    tables: Mapping[str, Mapping[str, object]],
    docs: Mapping[str, Mapping[str, str]],
) -> str:
    """Return a new file: a comment at its beginning, and the description of each key above it."""
    import tomlkit

    def comment(text: str, place: Any) -> None:
        for line in textwrap.wrap(text, _WIDTH, break_long_words=False):
            place.add(tomlkit.comment(line))

    document = tomlkit.document()
    comment(head, document)
    for name, values in tables.items():
        document.add(tomlkit.nl())
        table = tomlkit.table()
        for key, value in values.items():
            comment(docs[name][key], table)
            table.add(key, value)
        document.add(name, table)
    return tomlkit.dumps(document)


def parsed(text: str) -> dict[str, Any]:
    """Return what the text contains.

    Raises:
        ConfigError: it is not TOML.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it is not TOML: {error}", hint=_BY_HAND) from error


def _checked(text: str, wanted: dict[str, Any]) -> str:
    """Return a changed text, if it has what was meant to be in it and nothing else."""
    try:
        done = tomllib.loads(text) == wanted
    except (ValueError, RecursionError):
        done = False
    if not done:
        raise ConfigError("the file is written in a way that cannot be changed", hint=_BY_HAND)
    return text


_BY_HAND: Final = "change it in an editor"
_WIDTH: Final = 96  # of a comment, without its mark
