"""The permission matrix: the answer to every scope for every tool (docs/permissions.md).

It is computed from the registry and printed by `python -m tests.unit.tools.auth.permission_matrix`.
The tests try each of its cells.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from oubliette.tools.auth import scopes
from oubliette.tools.registry import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.tools.spec import Tool, Transport

Place = Literal["own", "other", "none"]
"""Project that a call names: the one that a bound key is bound to (for others, any), another,
none."""

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
TRANSPORTS: Final[tuple[Transport, ...]] = ("http", "socket")
MARKS: Final[dict[Answer, str]] = {
    "yes": "yes",
    "forbidden": "–",
    "not found": "hidden",
    "no tool": "",
}


def places(tool: Tool) -> tuple[Place, ...]:
    """The places that calls of this tool can name."""
    fields = set(tool.params.__struct_fields__)
    if not fields & {"project_id", "session_id"}:
        return ("none",)
    required = {field.name for field in _fields(tool) if field.required}
    return ("own", "other") if required & {"project_id", "session_id"} else ("own", "other", "none")


def answer(tool: Tool, scope: scopes.Scope, place: Place, transport: Transport) -> Answer:
    if transport not in tool.transports:
        return "no tool"
    if not tool.allowed(scope, transport):
        return "forbidden"
    return "not found" if place == "other" and scope.project is not None else "yes"


def cells() -> Iterator[tuple[Tool, str, Place, Transport, Answer]]:
    """Iterate over every tool × scope × place × transport, with the answer."""
    for tool in TABLE.values():
        for name, scope in SCOPES.items():
            for place in places(tool):
                for transport in TRANSPORTS:
                    yield tool, name, place, transport, answer(tool, scope, place, transport)


def markdown() -> str:
    lines = [
        "# Permissions",
        "",
        "Generated from the tools by `python -m tests.unit.tools.auth.permission_matrix`.",
        "A test checks each cell.",
        "",
        "* **yes**: the call is carried out. Only the principal of a session may converse with it,",
        "  answer calls of its tools and listen to it: for others it is not found, with any scope.",
        "  [Permission requests](agents.md#permissions-that-agents-ask-for) have their own rule.",
        "  What runs in a container is refused (`forbidden`) while an agent in it has a key that",
        "  reaches further: see [security](security.md#keys-and-rights).",
        "* **–**: `tool not allowed for this token scope`; the tool is not listed either.",
        "* **hidden**: not found, with the same error as for what never existed.",
        "* A tool that is not in a table does not exist on that transport.",
        "",
        "`project` and `project:ro` stand for `project:<id>` and `project:<id>:ro`. *own* is the",
        "project that such a key is bound to, *other* any other, *none* a call that names none.",
        "A tool without the id of a project or session has *none* only. `admin:ro` is another",
        "name of `read`.",
        "",
        "An agent with a key for several projects can start sessions in them, and its **tree**",
        "then spans them. Of a tree a key shows and ends what it reaches directly, and nothing",
        "else: sessions of other projects are left out of its events, of `parent_session_id`",
        "and `child_session_ids`, of `living_descendants` and of what `session_end` with `tree`",
        "ends; these live on. Sessions below them that the key reaches are not left out. Only",
        "the limits of a tree count all of its sessions: `config_limits`, `tree_list` and",
        "`tree_get` show how many there are and what they cost, whichever project they are in.",
    ]
    for transport, title in (("http", "Over HTTP"), ("socket", "Over an agent's link, with a key")):
        lines += ["", f"## {title}", "", f"| tool | about | {' | '.join(SCOPES)} |"]
        lines.append("|---|---|" + "---|" * len(SCOPES))
        for tool in TABLE.values():
            if transport not in tool.transports:
                continue
            for place in places(tool):
                marks = [MARKS[answer(tool, scope, place, transport)] for scope in SCOPES.values()]
                lines.append(f"| `{tool.name}` | {place} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def _fields(tool: Tool) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(tool.params)


if __name__ == "__main__":
    sys.stdout.write(markdown())
