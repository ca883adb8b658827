"""Patterns of permission rules: `TOOL` or `TOOL:SUBJECT`, such as `read` and `edit:src/**`.

A pattern that allows has to match all of a request: each path, each part of a command. One that
denies has to match any of it, and matches names that the request only may have.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.api.permissions.globs import (
    below,
    inside,
    matches_address,
    matches_name,
    matches_path,
    matches_text,
)
from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.api.permissions.subjects import Subject

_PARTS: Final = re.compile(r"&&|\|\||[;&|\n\r]")
_NESTED: Final = re.compile(r"[`<>()\x00-\x08]|\$\{|\\\n")
"""Text of a command that may start another one, or write to a file."""


class Pattern(msgspec.Struct, frozen=True):
    """One pattern of a rule."""

    tool: str
    """Glob over names of tools, and kinds of them."""
    subject: str | None = None
    """Glob over the subject; None matches every request of the tool."""

    def __str__(self) -> str:
        """Return the pattern as it is written."""
        return self.tool if self.subject is None else f"{self.tool}:{self.subject}"

    def names(self, subject: Subject, *, certain: bool) -> bool:
        """Return whether the pattern matches the tool; `certain`: without suspected names."""
        names = subject.names if certain else subject.names | subject.suspected
        if self.tool.strip("*") == "":
            return True
        return any(matches_name(self.tool, name) for name in names)

    def allows(self, subject: Subject, workspace: str) -> bool:
        """Return whether the pattern matches a request of one subject, whole and for certain."""
        if not self.names(subject, certain=True):
            return False
        if self.subject is None:
            return True
        wanted = self.subject
        parts = [
            *(self._has_path(wanted, path, workspace) for path in subject.paths),
            *(_has_command(wanted, command) for command in subject.commands),
            *(matches_address(wanted, address) for address in subject.addresses),
            *(matches_text(wanted, text) for text in subject.texts),
        ]
        return bool(parts) and all(parts)

    def _has_path(self, wanted: str, path: str, workspace: str) -> bool:
        whole = inside(path, workspace)
        if whole is None:
            relative = inside(path, "/") if not workspace and not path.startswith("/") else None
            return relative is not None and matches_path(wanted, relative[1:])
        if wanted.startswith("/"):
            return matches_path(wanted, whole)
        relative = below(whole, workspace)
        return relative is not None and matches_path(wanted, relative)

    def denies(self, subject: Subject, workspace: str) -> bool:
        """Return whether the pattern matches any part of a request, or may match it."""
        if not self.names(subject, certain=False):
            return False
        if self.subject is None:
            return True
        wanted = self.subject
        return (
            any(_names_path(wanted, path, workspace) for path in subject.paths)
            or any(_names_command(wanted, command) for command in subject.commands)
            or any(_names_address(wanted, address) for address in subject.addresses)
            or any(matches_text(wanted, text) for text in subject.texts)
        )

    def undecided(self, subject: Subject) -> bool:
        """Return whether a pattern that denies cannot be applied, for lack of a subject."""
        if self.subject is None or subject.kind is None:
            return False
        known = subject.paths or subject.commands or subject.addresses or subject.texts
        return not known and self.names(subject, certain=False)


def parse_pattern(text: object, field: str) -> Pattern:
    """Return the pattern that is written as `TOOL` or `TOOL:SUBJECT`.

    Raises:
        InvalidParameter: it is no text, or one of its parts is empty; the message names `field`.
    """
    if not isinstance(text, str):
        raise InvalidParameter(
            f"{field} is {text!r}, not a text", field=field, hint='write "read" or "edit:src/**"'
        )
    tool, colon, subject = (part.strip() for part in text.partition(":"))
    if not tool:
        raise InvalidParameter(
            f"{field}: {text!r} names no tool", field=field, hint='write "read" or "*"'
        )
    if colon and not subject:
        raise InvalidParameter(
            f"{field}: {text!r} has nothing after the colon",
            field=field,
            hint=f'"{tool}" matches all requests of the tool',
        )
    return Pattern(tool, subject if colon else None)


def parts_of(command: str) -> tuple[str, ...]:
    """Return the single commands of a command of a shell; quotes are not respected."""
    return tuple(part.strip() for part in _PARTS.split(command) if part.strip())


def _has_command(wanted: str, command: str) -> bool:
    """Return whether a command is only what the pattern matches, and starts nothing else."""
    if wanted.strip("*") == "" or wanted == command:
        return True
    parts = parts_of(command)
    if _NESTED.search(command) or len(parts) != 1:
        return False
    return matches_text(wanted, parts[0])


def _names_command(wanted: str, command: str) -> bool:
    return matches_text(wanted, command) or any(
        matches_text(wanted, part)
        for each in (command, _NESTED.sub("\n", command))
        for part in parts_of(each)
    )


def _names_path(wanted: str, path: str, workspace: str) -> bool:
    return any(matches_path(wanted, each) for each in _readings(path, workspace)) or (
        "/" not in wanted and matches_path(wanted, posixpath.basename(path.rstrip("/")))
    )


def _readings(path: str, workspace: str) -> Iterator[str]:
    """Return the paths that a path may be meant as: as it is, absolute, below the workspace."""
    plain = path.removeprefix("file://")
    yield plain
    yield posixpath.normpath(plain or ".")
    root = workspace if workspace.startswith("/") else "/"
    whole = f"/{posixpath.normpath(posixpath.join(root, plain)).lstrip('/')}"
    yield whole
    relative = below(whole, root)
    if relative is not None:
        yield relative


def _names_address(wanted: str, address: str) -> bool:
    return matches_address(wanted, address) or matches_text(wanted, address)
