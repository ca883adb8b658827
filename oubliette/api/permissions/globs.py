"""Globs of permission rules, over names, paths, addresses and commands.

`*` is any text, `?` one character, all else stands for itself. In a path `*` and `?` do not match
`/`, and `**` as a whole part matches any number of parts. In the host of an address `*` does not
match `/`.
"""

from __future__ import annotations

import posixpath
import re
from functools import lru_cache
from typing import Final

_ADDRESS: Final = re.compile(r"(?i)(https?)://([^/?#@\\\s]+)((?:[/?#]\S*)?)")


def matches_text(pattern: str, text: str) -> bool:
    """Return whether a pattern matches a whole text, such as a command."""
    return bool(_text(pattern).fullmatch(text))


def matches_name(pattern: str, name: str) -> bool:
    """Return whether a pattern matches the name of a tool, in upper or lower case."""
    return bool(_text(pattern.lower()).fullmatch(name.lower()))


def matches_path(pattern: str, path: str) -> bool:
    """Return whether a pattern matches a whole path. Neither of the two may have `..`."""
    return bool(_path(pattern).fullmatch(path))


def matches_address(pattern: str, address: str) -> bool:
    """Return whether a pattern matches an address (URL).

    A pattern without a scheme matches `http` and `https`, one without a path any path. An address
    with a user name, a backslash or a blank matches no pattern, since programs disagree about its
    host.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return False
    scheme, host, rest = found[1].lower(), found[2].lower(), found[3]
    wanted_scheme, separator, wanted = pattern.rpartition("://")
    wanted_host, slash, wanted_rest = wanted.partition("/")
    if separator and not matches_name(wanted_scheme, scheme):
        return False
    if not _host(wanted_host.lower()).fullmatch(host):
        return False
    return not slash or matches_text(f"/{wanted_rest}", rest or "/")


def inside(path: str, workspace: str) -> str | None:
    """Return a path as an absolute one without `.`; None if it may lead elsewhere than it reads.

    That has `..`, a home directory or a variable, a backslash, or a control character.

    Args:
        path: absolute, or below the workspace.
        workspace: the absolute path of the workspace; empty if it is unknown.
    """
    plain = path.removeprefix("file://")
    if not plain or "://" in plain or "\\" in plain or plain[0] in "~$":
        return None
    if not plain.isprintable() or ".." in plain.split("/") or (".." in plain and "{" in plain):
        return None
    if not plain.startswith("/"):
        if not workspace.startswith("/"):
            return None
        plain = f"{workspace}/{plain}"
    return f"/{posixpath.normpath(plain).lstrip('/')}"


def below(path: str, workspace: str) -> str | None:
    """Return an absolute path as one relative to the workspace; None if it is not below it."""
    if not workspace.startswith("/"):
        return None
    root = f"/{posixpath.normpath(workspace).strip('/')}"
    root = "/" if root == "/" else f"{root}/"
    return path[len(root) :] if path.startswith(root) and path != root else None


# Between two stars the first place that fits is as good as any other, so a match never goes back to
# an earlier star: its time is bounded by the lengths, however hostile the text is.


@lru_cache(maxsize=1024)
def _text(pattern: str) -> re.Pattern[str]:
    return re.compile(_glob(pattern, "."), re.DOTALL)


@lru_cache(maxsize=1024)
def _host(pattern: str) -> re.Pattern[str]:
    return re.compile(_glob(pattern, "[^/?#@]"))


def _glob(pattern: str, character: str) -> str:
    """Return the expression of a glob whose `*` and `?` match such characters."""
    first, *others = (_fixed(part, character) for part in re.split(r"\*+", pattern))
    if not others:
        return first
    *middle, last = others
    return first + "".join(f"(?>{character}*?{part})" for part in middle) + f"{character}*{last}"


def _fixed(text: str, character: str) -> str:
    return character.join(map(re.escape, text.split("?")))


@lru_cache(maxsize=1024)
def _path(pattern: str) -> re.Pattern[str]:
    chunks: list[list[str]] = [[]]
    for part in re.split(r"/+", pattern):
        if part == "**":
            chunks.append([])
        elif part != ".":
            chunks[-1].append(_glob(part, "[^/]"))
    first, *others = ("/".join(chunk) for chunk in chunks)
    if not others:
        return re.compile(first)
    *middle, last = others
    lead = f"{first}/" if chunks[0] else ""
    inner = "".join(f"(?>(?:[^/]+/)*?{chunk}/)" for chunk in middle if chunk)
    return re.compile(f"{lead}{inner}" + (f"(?:[^/]+/)*{last}" if last else ".+"), re.DOTALL)
