"""The permission matrix: what every scope may do with every tool (docs/permissions.md).

Made from the registry, printed by `python -m oubliette.tools.auth.permission_matrix`. The tests
try each of its cells.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from oubliette.tools.auth import scopes
from oubliette.tools.registry import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.tools.spec import Door, Tool

Place = Literal["own", "other", "none"]
"""What a call is about: the project of a bound key (for others, any project), another one, none."""

Answer = Literal["yes", "forbidden", "not found", "no tool"]

OWN: Final = "proj_" + "0" * 26
"""Stands for the project that a key is bound to."""

SCOPES: Final[dict[str, scopes.Scope]] = {
    "admin": scopes.parse("admin"),
    "write": scopes.parse("write"),
    "read": scopes.parse("read"),
    "project": scopes.parse(f"project:{OWN}"),
    "project:ro": scopes.parse(f"project:{OWN}:ro"),
}
DOORS: Final[tuple[Door, ...]] = ("http", "socket")
MARKS: Final[dict[Answer, str]] = {
    "yes": "yes",
    "forbidden": "–",
    "not found": "hidden",
    "no tool": "",
}


def places(tool: Tool) -> tuple[Place, ...]:
    """What calls of this tool can be about."""
    fields = set(tool.params.__struct_fields__)
    if not fields & {"project_id", "session_id"}:
        return ("none",)
    required = {field.name for field in _fields(tool) if field.required}
    return ("own", "other") if required & {"project_id", "session_id"} else ("own", "other", "none")


def answer(tool: Tool, scope: scopes.Scope, place: Place, door: Door) -> Answer:
    """What the holder of such a key is told."""
    if door not in tool.doors:
        return "no tool"
    if not tool.allowed(scope, door):
        return "forbidden"
    return "not found" if place == "other" and scope.project is not None else "yes"


def cells() -> Iterator[tuple[Tool, str, Place, Door, Answer]]:
    """Every tool × scope × place × door, and what is answered."""
    for tool in TABLE.values():
        for name, scope in SCOPES.items():
            for place in places(tool):
                for door in DOORS:
                    yield tool, name, place, door, answer(tool, scope, place, door)


def markdown() -> str:
    """The matrix as a page."""
    lines = [
        "# Permissions",
        "",
        "Made from the tools by `python -m oubliette.tools.auth.permission_matrix`.",
        "A test tries each cell.",
        "",
        "* **yes**: the call is carried out. Conversing with a session, answering for it and",
        "  listening are for its owner alone: for others it is not found, whatever their scope.",
        "* **–**: `tool not allowed for this token scope`; the tool is not listed either.",
        "* **hidden**: not found, in the very words for what never existed.",
        "* empty: there is no such tool at this door.",
        "",
        "`project` and `project:ro` stand for `project:<id>` and `project:<id>:ro`. *own* is the",
        "project that such a key is bound to, *other* any other, *none* a call that names none.",
        "Where a tool takes no id of a project or session, there is *none* alone. `admin:ro` is",
        "another name of `read`.",
    ]
    for door, title in (("http", "Over HTTP"), ("socket", "Over an agent's link, with a key")):
        lines += ["", f"## {title}", "", f"| tool | about | {' | '.join(SCOPES)} |"]
        lines.append("|---|---|" + "---|" * len(SCOPES))
        for tool in TABLE.values():
            if door not in tool.doors:
                continue
            for place in places(tool):
                told = [MARKS[answer(tool, scope, place, door)] for scope in SCOPES.values()]
                lines.append(f"| `{tool.name}` | {place} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def _fields(tool: Tool) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(tool.params)


if __name__ == "__main__":
    sys.stdout.write(markdown())
