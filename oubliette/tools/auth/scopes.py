"""Scopes of keys.

A scope has a level, and may be bound to one project. Whether an object belongs to that project is
decided by its record, never by the arguments of a call.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from oubliette import ids
from oubliette.errors import InvalidParameter

Level = Literal["read", "write", "admin"]

_RANK: Final[dict[Level, int]] = {"read": 0, "write": 1, "admin": 2}
NAMES: Final = ("admin", "write", "read", "admin:ro", "project:<id>", "project:<id>:ro")
"""The forms of a scope, as `project_options` lists them."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """A level, for all projects or for one."""

    level: Level
    project: str | None = None

    def __str__(self) -> str:
        if self.project is None:
            return self.level
        return f"project:{self.project}" + (":ro" if self.level == "read" else "")

    def covers(self, level: Level, *, unbound: bool = False) -> bool:
        """Whether a tool of this level may be called; `unbound` ones by unbound keys only."""
        if unbound and self.project is not None:
            return False
        return _RANK[self.level] >= _RANK[level]

    def reaches(self, project_id: str) -> bool:
        """Whether the key can see objects of this project."""
        return self.project is None or self.project == project_id


def parse(text: str, field: str = "scope") -> Scope:
    """Return the scope that `text` names; `admin:ro` is `read`.

    Raises:
        InvalidParameter: it names none; the message lists the forms.
    """
    match text.split(":"):
        case ["admin"] | ["write"] | ["read"]:
            level: Level = "admin" if text == "admin" else "write" if text == "write" else "read"
            return Scope(level=level)
        case ["admin", "ro"]:
            return Scope(level="read")
        case ["project", project]:
            return Scope(level="write", project=ids.check_id(project, ids.PROJECT, field))
        case ["project", project, "ro"]:
            return Scope(level="read", project=ids.check_id(project, ids.PROJECT, field))
        case _:
            raise InvalidParameter(
                f"{field}: {ids.shown(text)} is not one of: {', '.join(NAMES)}", field=field
            )


def narrower_or_equal(inner: Scope, outer: Scope) -> bool:
    """Whether `outer` allows everything that `inner` allows."""
    if outer.project is not None and inner.project != outer.project:
        return False
    return _RANK[inner.level] <= _RANK[outer.level]


def minted_scope(text: str, session_project: str, key_project: str | None, creator: Scope) -> Scope:
    """The scope of the key that `api_key_scope` and `api_key_project` ask for.

    It is bound to the session's project unless the creator, unbound itself, names another one or
    `*`.

    Raises:
        InvalidParameter: they contradict each other.
    """
    asked = parse(text, "api_key_scope")
    if asked.project is not None:
        if key_project not in {None, asked.project}:
            raise InvalidParameter(
                "api_key_project: api_key_scope names another project already",
                field="api_key_project",
            )
        return asked
    if key_project == "*":
        return asked
    if asked.level == "admin":
        raise InvalidParameter(
            'api_key_scope: admin cannot be bound to a project; give api_key_project="*" if'
            " the agent is to have all rights",
            field="api_key_scope",
        )
    if key_project is not None:
        ids.check_id(key_project, ids.PROJECT, "api_key_project")
    elif creator.project is not None:
        key_project = creator.project
    return Scope(level=asked.level, project=key_project or session_project)
