"""End of a program's standard error, fit to be quoted in an error."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette.config.secret_names import looks_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

KEPT: Final = 16 << 10
"""Bytes kept of the end: secrets are searched in them before they are cut."""
QUOTED: Final = 2000  # characters; a stack trace of Node.js with its reason takes 1200
_SHORTEST: Final = 6  # characters of a secret: shorter ones are in every text
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
)
_OUR_KEYS: Final = re.compile(r"oub_[A-Za-z0-9_]+?_[A-Za-z0-9_-]{16,}")
_MASK: Final = "***"


def quoted(data: bytes, secrets: Iterable[str] = ()) -> str:
    """The last lines of `data`, without secrets and control characters."""
    text = _ESCAPES.sub("", data[-KEPT:].decode("utf-8", "replace")).replace("\r\n", "\n")
    text = "".join(
        each if each.isprintable() or each == "\n" else " " if each in "\t\r" else ""
        for each in text
    )
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, _MASK)
    text = _OUR_KEYS.sub(f"oub_{_MASK}", text)
    lines = [line.rstrip() for line in text.split("\n")]
    text = "\n".join(line for line in lines if line)
    if len(text) <= QUOTED:
        return text
    cut = text[-QUOTED:]
    return "…" + (cut.partition("\n")[2] or cut)


def secrets_in(env: Mapping[str, str], names: Iterable[str] = ()) -> set[str]:
    """Return values of an environment that are secrets: those of `names`, and by their names.

    The values inside a JSON value, as configurations are, are included.
    """
    named = set(names)
    found: set[str] = set()
    for name, value in env.items():
        if name in named or looks_secret(name):
            found.add(value)
        elif value[:1] == "{":
            try:
                found.update(_named_secret(msgspec.json.decode(value)))
            except (msgspec.DecodeError, RecursionError):
                continue
    return found


def _named_secret(tree: object) -> Iterator[str]:
    if isinstance(tree, dict):
        for name, value in cast("dict[str, Any]", tree).items():
            if isinstance(value, str):
                if looks_secret(name) or name.lower() == "authorization":
                    yield value
                    yield value.removeprefix("Bearer ")
            else:
                yield from _named_secret(value)
    elif isinstance(tree, list):
        for value in cast("list[Any]", tree):
            yield from _named_secret(value)
