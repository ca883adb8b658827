"""Views of a configuration in agents' own file formats: for people, read by no session.

"config.json: canonical agent config; opencode.json, .factory/: generated". Sessions get the same by
their environment or by a call, generated from the canonical file at each start, because an agent,
or a hostile repository, may overwrite these files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.config.agent_config import OURS

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.config.agent_config import AgentConfig, McpServer

CLIENT: Final = "oubliette-client"
"""Our MCP server, as programs in a container find it; its environment identifies the session."""


def views(config: AgentConfig) -> dict[str, bytes]:
    """Return path → content of `config.json`, `opencode.json` and `.factory/`, without secrets."""
    factory = {name: _factory(server) for name, server in config.enabled.items()}
    ours: dict[str, Any] = {"type": "stdio", "command": CLIENT, "args": []}
    opencode = {name: opencode_server(server) for name, server in config.enabled.items()}
    model = {} if config.model is None else {"model": config.model}
    return {
        "config.json": _json({"mcpServers": {}, **msgspec.to_builtins(config)}),
        "opencode.json": _json(
            {
                "$schema": "https://opencode.ai/config.json",
                **model,
                "mcp": {OURS: {"type": "local", "command": [CLIENT]}, **opencode},
            }
        ),
        ".factory/mcp.json": _json({"mcpServers": {OURS: ours, **factory}}),
        ".factory/settings.json": _json({"sessionDefaultSettings": model} if model else {}),
    }


def opencode_server(server: McpServer) -> dict[str, Any]:
    server = server.filled(_named("{{env:{}}}"))
    if server.url is not None:
        return {"type": "remote", "url": server.url, "headers": server.headers}
    command = [server.command, *server.args]
    return {"type": "local", "command": command, "environment": server.env}


def _factory(server: McpServer) -> dict[str, Any]:
    server = server.filled(_named("${{{}}}"))
    if server.url is not None:
        return {"type": server.type or "http", "url": server.url, "headers": server.headers}
    return {"type": "stdio", "command": server.command, "args": server.args, "env": server.env}


def _named(form: str) -> Callable[[str], str]:
    return lambda name: form.format(f"OUBLIETTE_CREDENTIAL_{name.upper()}")


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
