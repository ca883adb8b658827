"""Validation of caller tools, and their conversion to a form that agents' clients accept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette import ids
from oubliette.contract.agent_tools import AGENT_TOOLS
from oubliette.errors import InvalidParameter
from oubliette.records import CallerTool

if TYPE_CHECKING:
    from oubliette.config.schema import CallersConfig
    from oubliette.contract.agent_options import ToolDefinition

_PRIVATE: Final = "x-mcp-header"
"""Key of a schema that would make an agent's client copy an argument into an HTTP header (MCP
2026-07-28)."""
_SCHEMAS: Final = frozenset(
    {"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
)
_SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_SCHEMA_MAPS: Final = frozenset(
    {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
)


def normalised(
    tools: tuple[ToolDefinition, ...],
    caller_id: str,
    limits: CallersConfig,
    where: str = "caller_tools",
) -> tuple[CallerTool, ...]:
    """The tools with schemas that every agent's client accepts.

    Raises:
        InvalidParameter: too many tools, a repeated, invalid or reserved name, a schema that is too
            large, not of an object, or refers to another document.
    """
    if len(tools) > limits.max_tools:
        raise InvalidParameter(
            f"{where}: {len(tools)} tools; at most {limits.max_tools} are allowed", field=where
        )
    names: set[str] = set()
    provided: list[CallerTool] = []
    for place, tool in enumerate(tools):
        at = f"{where}[{place}]"
        ids.check_tool_name(tool.name, f"{at}.name")
        if tool.name in names:
            raise InvalidParameter(f"{at}.name: {tool.name} is there twice", field=f"{at}.name")
        if f"{caller_id}_{tool.name}" in AGENT_TOOLS:
            raise InvalidParameter(
                f"{at}.name: {caller_id}_{tool.name} is a tool of ours; give it another name",
                field=f"{at}.name",
            )
        names.add(tool.name)
        provided.append(
            CallerTool(
                name=tool.name,
                description=tool.description,
                input_schema=_schema(tool.input_schema, limits.max_schema_bytes, at),
                durable=tool.durable,
            )
        )
    return tuple(provided)


def _schema(given: dict[str, Any], most: int, at: str) -> dict[str, Any]:
    where = f"{at}.inputSchema"
    size = len(msgspec.json.encode(given))
    if size > most:
        raise InvalidParameter(f"{where}: {size} bytes; at most {most} are allowed", field=where)
    schema = _clean(given, where)
    kind = schema.setdefault("type", "object")
    if kind != "object":
        raise InvalidParameter(
            f'{where}: its "type" must be "object", since arguments are an object', field=where
        )
    return schema


def _clean(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """Return `schema` without private keys at any depth; data (`default`) is not changed."""
    clean: dict[str, Any] = {}
    for key, value in schema.items():
        if key.lower() == _PRIVATE or key == "$id":
            continue  # a base URI would turn local references into remote ones
        if key in {"$ref", "$dynamicRef", "$recursiveRef"} and not (
            isinstance(value, str) and value.startswith("#")
        ):
            raise InvalidParameter(
                f"{where}: {key} {ids.shown(value)} refers to another document; put it in $defs",
                field=where,
            )
        clean[key] = _clean_inner(key, value, where)
    return clean


def _clean_inner(key: str, value: Any, where: str) -> Any:
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value)
        if key in _SCHEMAS:
            return _clean(inner, where)
        if key in _SCHEMA_MAPS:
            return {name: _clean_part(part, where) for name, part in inner.items()}
    elif isinstance(value, list) and key in _SCHEMA_LISTS:
        return [_clean_part(part, where) for part in cast("list[Any]", value)]
    return cast("Any", value)


def _clean_part(part: Any, where: str) -> Any:
    return _clean(cast("dict[str, Any]", part), where) if isinstance(part, dict) else part
