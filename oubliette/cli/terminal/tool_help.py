"""Help of `oubliette call TOOL --help`, generated from the tool's schemas."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from oubliette import ids

if TYPE_CHECKING:
    from collections.abc import Mapping

WIDTH: Final = 92
_ID: Final = "0" * 26
_SAMPLES: Final[dict[str, Any]] = {
    "project_id": f"{ids.PROJECT}_{_ID}",
    "session_id": f"{ids.SESSION}_{_ID}",
    "session_ids": [f"{ids.SESSION}_{_ID}", f"{ids.SESSION}_{'1' * 26}"],
    "token_id": f"{ids.TOKEN}_{_ID}",
    "workspace_id": "00000000-0000-4000-8000-000000000000",
    "name": "shop",
    "scope": "read",
    "prompt": "say hello",
    "message": "say more",
    "messages": ["say one", "say two"],
    "command": "ls -l",
    "container_type": "base",
}
"""Values of required parameters in examples, by name; of others by type."""


class Parameter(NamedTuple):
    """One parameter of a tool."""

    name: str
    type: str
    required: bool
    default: str | None
    """As JSON; None if there is none, or it is null."""
    description: str


def parameters(schema: Mapping[str, Any]) -> list[Parameter]:
    """The parameters of an input schema in its order: the required ones first."""
    required = set(schema.get("required", ()))
    found: list[Parameter] = []
    for name, part in schema.get("properties", {}).items():
        default = part.get("default")
        found.append(
            Parameter(
                name=name,
                type=type_of(part),
                required=name in required,
                default=None if default is None else json.dumps(default, ensure_ascii=False),
                description=str(part.get("description", "")),
            )
        )
    return found


def type_of(part: Mapping[str, Any]) -> str:
    if "enum" in part:
        return " | ".join(str(each) for each in part["enum"] if each is not None)
    kinds = [type_of(each) for each in part.get("anyOf", ()) if each.get("type") != "null"]
    if kinds:
        return " or ".join(dict.fromkeys(kinds))
    kind = part.get("type")
    if kind == "array":
        items = cast("dict[str, Any]", part.get("items") or {})
        return f"array of {type_of(items)}s" if items.get("type") else "array"
    return str(kind) if isinstance(kind, str) else "any JSON"


def takes_text(part: Mapping[str, Any]) -> bool:
    """Whether this parameter takes text as it is, not parsed as JSON."""
    kinds = {each.get("type") for each in part.get("anyOf", (part,))} - {"null"}
    return "enum" in part or kinds == {"string"} or any("enum" in e for e in part.get("anyOf", ()))


def sample(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return valid arguments of the tool: each required parameter with a fitting value."""
    return {
        each: _SAMPLES[each] if each in _SAMPLES else _value(schema["properties"][each])
        for each in schema.get("required", ())
    }


def _value(part: Mapping[str, Any]) -> Any:
    if "enum" in part:
        return part["enum"][0]
    if part.get("anyOf"):
        return _value(part["anyOf"][0])
    match part.get("type"):
        case "integer" | "number":
            return max(1, part.get("minimum", 1))
        case "boolean":
            return True
        case "array":
            return []
        case "object":
            return {}
        case _:
            return "text"


def example(tool: str, schema: Mapping[str, Any]) -> str:
    given = sample(schema)
    if not given:
        return f"oubliette call {tool}"
    return f"oubliette call {tool} {shlex.quote(json.dumps(given))}"


def help_text(
    tool: str, description: str, schema: Mapping[str, Any], result: Mapping[str, Any]
) -> str:
    import textwrap

    lines = [f"Usage: oubliette call {tool} [JSON | @FILE | -] [KEY=VALUE]...", ""]
    lines += textwrap.wrap(description, WIDTH, initial_indent="  ", subsequent_indent="  ")
    found = parameters(schema)
    lines += ["", "Parameters:" if found else "It takes no parameters."]
    for each in found:
        facts = [each.type]
        if each.required:
            facts.append("required")
        if each.default is not None:
            facts.append(f"default {each.default}")
        lines.append(f"  {each.name}: {', '.join(facts)}")
        lines += textwrap.wrap(
            each.description, WIDTH, initial_indent="      ", subsequent_indent="      "
        )
    names = ", ".join(result.get("properties", {}))
    lines += ["", "Result:"]
    lines += textwrap.wrap(names, WIDTH, initial_indent="  ", subsequent_indent="  ")
    lines += ["", "Example:", f"  {example(tool, schema)}"]
    return "\n".join(lines) + "\n"
