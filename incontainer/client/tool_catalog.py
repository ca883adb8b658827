"""Catalog of the agent's tools: base tools, Oubliette's own, the caller's; and their results.

Names are `session_message`, `oubliette_{tool}` and `{caller_id}_{tool}`, as given. Most agents take
only names that match `[a-zA-Z0-9_-]{1,64}`; a tool with another name is listed all the same, and
the agent decides whether to refuse it.
"""

from __future__ import annotations

import json

from ..io.json_values import as_array, as_object, as_text
from .agent_tools import BASE, CONTEXT, entries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Json = dict[str, Any]

CALLER = "caller"
OUBLIETTE = "oubliette"

OUBLIETTE_PREFIX = "oubliette_"
NAMELESS_CALLER = "caller"  # stands for a caller that provides tools but no caller_id

CALL_TIMEOUT_SECONDS = 60.0  # until the server sends another one
LONGEST_TIMEOUT_SECONDS = 86400.0

INSUFFICIENT_SCOPE = -32002
INVALID_KEY = -32001


class CatalogTool:
    """One tool as the agent sees it, and its name on the server."""

    __slots__ = ("entry", "kind", "remote_name")

    def __init__(self, entry: Json, kind: str, remote_name: str) -> None:
        self.entry = entry
        self.kind = kind
        self.remote_name = remote_name

    @property
    def name(self) -> str:
        return self.entry["name"]

    def accepts(self, field: str) -> bool:
        """Whether the tool's schema has this top-level parameter."""
        return field in (as_object(self.entry["inputSchema"].get("properties")) or {})


class Catalog:
    """Tools by name. On a clash base tools win, then Oubliette's, then the caller's first."""

    def __init__(self, log: Callable[[str], None], *, has_context: bool = False) -> None:
        self._log = log
        self._base = [CatalogTool(entry, BASE, entry["name"]) for entry in entries(BASE)]
        if has_context:
            self._base += [CatalogTool(entry, CONTEXT, entry["name"]) for entry in entries(CONTEXT)]
        self._oubliette: list[CatalogTool] = []
        self._caller: list[CatalogTool] = []
        self._tools: dict[str, CatalogTool] = {}
        self._short: dict[str, CatalogTool] = {}
        self.call_timeout_seconds = CALL_TIMEOUT_SECONDS
        self._merge()

    def find(self, name: str) -> CatalogTool | None:
        """Return the tool of that name; a caller's tool also by its name without the caller's.

        People write the short name into prompts, and models repeat it.
        """
        return self._tools.get(name) or self._short.get(name)

    def entries(self) -> list[Json]:
        """All tools as `tools/list` shows them, in a stable order."""
        return [tool.entry for tool in self._tools.values()]

    def configure_caller(self, params: Json) -> bool:
        """Replace the caller's tools by those of a `caller_tools_config`.

        Returns:
            Whether what the agent sees has changed.

        """
        prefix = as_text(params.get("caller_id"), NAMELESS_CALLER)
        timeout: object = params.get("call_timeout_seconds")
        if isinstance(timeout, (int, float)) and timeout > 0:
            self.call_timeout_seconds = float(min(timeout, LONGEST_TIMEOUT_SECONDS))
        provided_by = f"Provided by {prefix}."
        self._caller = self._read(params.get("tools"), CALLER, f"{prefix}_", provided_by)
        return self._merge()

    def configure_oubliette(self, tools: object) -> bool:
        """Replace Oubliette's own tools by the answer to `oubliette_tools`; True if changed."""
        self._oubliette = self._read(
            tools, OUBLIETTE, OUBLIETTE_PREFIX, "One of Oubliette's tools."
        )
        return self._merge()

    def _read(self, tools: object, kind: str, prefix: str, description: str) -> list[CatalogTool]:
        items = as_array(tools)
        if items is None and tools is not None:
            self._log(f"ignored the {kind} tools: they are not a list")
        found: list[CatalogTool] = []
        for item in items or ():
            tool = _tool(as_object(item) or {}, kind, prefix, description)
            if tool is None:
                self._log(f"ignored a {kind} tool that has no name")
            else:
                found.append(tool)
        return found

    def _merge(self) -> bool:
        tools: dict[str, CatalogTool] = {}
        for tool in (*self._base, *self._oubliette, *self._caller):
            if tool.name in tools:
                self._log(f"tool {tool.name} is there already ({tools[tool.name].kind}): left out")
            else:
                tools[tool.name] = tool
        self._short = {tool.remote_name: tool for tool in reversed(self._caller)}
        before, self._tools = self._tools, tools
        shown = [(tool.kind, tool.entry) for tool in tools.values()]
        return shown != [(tool.kind, tool.entry) for tool in before.values()]


def _tool(item: Json, kind: str, prefix: str, description: str) -> CatalogTool | None:
    name = as_text(item.get("name"))
    if not name:
        return None
    entry: Json = {
        "name": prefix + name,
        "description": as_text(item.get("description"), description),
        "inputSchema": object_schema(item.get("inputSchema")),
    }
    return CatalogTool(entry, kind, name)


def object_schema(schema: object) -> Json:
    """The schema with an object at its root.

    One schema without it makes the official SDK drop the whole tool list.
    """
    kept = {**(as_object(schema) or {}), "type": "object"}
    for key, wanted in (("properties", dict), ("required", list), ("$schema", str)):
        if not isinstance(kept.get(key), wanted):
            kept.pop(key, None)
    return kept


# Results


def success(result: object) -> Json:
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    shown: Json = {"content": [{"type": "text", "text": text}], "isError": False}
    if isinstance(result, dict):
        shown["structuredContent"] = result
    return shown


def tool_error(message: str, kind: str) -> Json:
    """Return a failed call for the agent; `kind` is for programs what the text is for the model."""
    return {
        "content": [{"type": "text", "text": message}],
        "isError": True,
        "_meta": {"dev.oubliette/kind": kind},
    }


def oubliette_error(code: int, message: str, kind: str) -> Json:
    """A failed `oubliette_call_tool` for the agent (specification of oubliette-tools)."""
    if code == INSUFFICIENT_SCOPE:
        return tool_error(_led_by("insufficient permissions", message), "insufficient_permissions")
    if code == INVALID_KEY:
        return tool_error(_led_by("invalid or expired API key", message), "invalid_key")
    return tool_error(message, kind)


def _led_by(phrase: str, message: str) -> str:
    return message if phrase in message else f"{phrase}: {message}"


def oubliette_success(result: object) -> Json:
    """The result of `oubliette_call_tool`, which is an MCP result already."""
    fields = as_object(result) or {}
    content = as_array(fields.get("content"))
    if content is None or not all(as_text((as_object(b) or {}).get("type")) for b in content):
        return success(result)
    shown: Json = {"content": content, "isError": fields.get("isError") is True}
    if isinstance(fields.get("structuredContent"), dict):
        shown["structuredContent"] = fields["structuredContent"]
    return shown
