"""Runtime of Droid: its settings, its environment."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.config.agent_config import OURS
from oubliette.runtime.agents.base import AgentCommand, AgentFile
from oubliette.runtime.agents.droid.adapter import DroidAdapter
from oubliette.runtime.agents.environment import (
    base_environment,
    environment,
    secret,
)
from oubliette.runtime.agents.handshake_adapter import Opening, object_of
from oubliette.runtime.agents.program_runtime import ConfiguredProgram

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.base import AgentSession
    from oubliette.runtime.containers.base import Inside

SECTION: Final = "droid"
KEY: Final = "OUBLIETTE_MODEL_KEY"
"""Variable with the model's key, which Droid substitutes in its settings."""
RULING: Final = ".factory/oubliette.json"
"""Settings of one process, which override all others; of its HOME."""
TOOL_TIMEOUT: Final = 25 * 3600 * 1000
"""Milliseconds that Droid waits for a tool of ours, whose own deadlines are earlier."""


class DroidRuntime(ConfiguredProgram):
    """`AgentRuntime` of Droid."""

    program = "droid"
    package = "droid"

    @property
    def name(self) -> str:
        return "droid"

    @property
    def slow_start(self) -> str:
        """Advice: it waits for servers of Factory, long if the network drops packets.

        Measured: over 60 s with a proxy that accepts connections and never answers, 2 to 5 s if
        nothing can be reached or everything is refused.
        """
        return (
            "it waits for Factory's servers when the network takes its packets and never answers:"
            " let the network refuse them, have process.network or containers.network none, or set"
            " HTTPS_PROXY=http://127.0.0.1:9 and NO_PROXY=<host of your model> in droid.env"
        )

    @property
    def session_files(self) -> tuple[str, ...]:
        """Its conversations; its settings and credentials are beside that folder."""
        return (".factory/sessions",)

    def _model(self, session: AgentSession) -> str | None:
        model = session.model or self._config.get("model")
        return f"custom:{model}-0" if model and self._config.get("base_url") else model

    def command(self, session: AgentSession, inside: Inside) -> AgentCommand:
        """The command: settings without secrets in its HOME, the rest in the environment.

        The effective settings are passed by `--settings`: a repository's own override those of
        HOME, and could name programs to start, or another address for the model's key.
        """
        servers, values = _servers(session, inside)
        settings = self._settings(session)
        policy = secrets.token_hex(16)
        ruling = {
            **settings,
            "hooks": {"hooksDisabled": True},
            # Servers of files are started if one of their words contains this, and no others.
            "mcpPolicy": {"enabled": True, "allowlist": [policy]},
            "mcp": {"mcpServers": {name: _ours(one, policy) for name, one in servers.items()}},
        }
        stream = ("--input-format", "stream-jsonrpc", "--output-format", "stream-jsonrpc")
        config = self._config
        key = "none"
        if (reference := config.get("api_key")) is not None:
            key = secret(reference, f"{SECTION}.api_key", session.credentials)
        home = inside.path(session.home)
        return AgentCommand(
            argv=(self._program.inside(inside), "--settings", f"{home}/{RULING}", "exec", *stream),
            env={
                **base_environment(session, inside),
                **values,
                "FACTORY_DROID_AUTO_UPDATE_ENABLED": "false",
                KEY: key,
                **environment(config.get("env") or (), SECTION, session.credentials),
            },
            cwd=inside.path(session.cwd),
            files=(
                AgentFile(path=RULING, content=_json(ruling)),
                AgentFile(path=".factory/settings.json", content=_json(settings)),
                AgentFile(path=".factory/mcp.json", content=_json({"mcpServers": servers})),
            ),
        )

    def _settings(self, session: AgentSession) -> dict[str, Any]:
        settings: dict[str, Any] = {"cloudSessionSync": False, "blockOnMcpLoad": True}
        model = session.model or self._config.get("model")
        if self._config.get("base_url"):
            settings["customModels"] = [
                {
                    "model": model,
                    "displayName": model,
                    "baseUrl": self._config["base_url"],
                    "apiKey": f"${{{KEY}}}",
                    "provider": self._config.get("provider") or "generic-chat-completion-api",
                    "maxOutputTokens": self._config.get("output_tokens") or 32_000,
                }
            ]
        if (named := self._model(session)) is not None:
            settings["sessionDefaultSettings"] = {"model": named}
        return settings

    def adapter(
        self, session: AgentSession, inside: Inside, state: Mapping[str, Any] | None = None
    ) -> DroidAdapter:
        """An adapter that opens a session.

        Its MCP servers are named again here: a session that names some does not watch files for
        more, and its own are started even if a later release distrusted those of the settings.
        Droid repeats them on its output, so they contain no secret: programs inherit theirs.
        """
        servers, _ = _servers(session, inside)
        programs = [
            {"name": name, "command": one["command"], "args": one["args"], "env": one["env"]}
            for name, one in servers.items()
            if "command" in one
        ]
        remote = [
            {
                "name": name,
                "type": one["type"],
                "url": one["url"],
                "headers": [{"name": key, "value": value} for key, value in one["headers"].items()],
            }
            for name, one in servers.items()
            if "url" in one
        ]
        opening = Opening(
            cwd=inside.path(session.cwd),
            mcp_servers=(*programs, *remote),
            autonomy=session.autonomy,
            agent_session_id=session.agent_session_id,
            model=self._model(session),
            prices=self._prices,
        )
        return DroidAdapter(opening, state)

    async def close(self) -> None:
        """Do nothing: this object holds no resources."""


def _servers(
    session: AgentSession, inside: Inside
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return our servers and the project's, in Droid's format, and the variables with their values.

    No value is in the file or in a message to Droid: it substitutes variables of its environment.
    """
    command, *arguments = inside.program("client")
    servers: dict[str, dict[str, Any]] = {
        OURS: {
            "type": "stdio",
            "command": command,
            "args": arguments,
            "env": {},
            "timeout": TOOL_TIMEOUT,
        }
    }
    values: dict[str, str] = {}

    def hidden(fields: Mapping[str, Any]) -> dict[str, str]:
        names: dict[str, str] = {}
        for name, value in fields.items():
            variable = f"OUBLIETTE_MCP_{len(values)}"
            values[variable] = str(value)
            names[name] = f"${{{variable}}}"
        return names

    for name, config in sorted(session.mcp_servers.items()):
        one = object_of(config)
        if name == OURS:
            continue
        if "command" in one:
            servers[name] = {
                "type": "stdio",
                "command": one["command"],
                "args": [str(word) for word in one.get("args") or ()],
                "env": hidden(object_of(one.get("env"))),
            }
        elif "url" in one:
            servers[name] = {
                "type": "sse" if one.get("type") == "sse" else "http",
                "url": one["url"],
                "headers": hidden(object_of(one.get("headers"))),
            }
    return servers, values


def _ours(server: dict[str, Any], policy: str) -> dict[str, Any]:
    """Start an MCP server through a shell whose `$0` is `policy`, a random word.

    Droid admits servers by this word, so that the settings of a repository cannot name one.
    """
    if "command" not in server:
        return server  # ruled by its host's name; the session names it anyway
    words = ["-c", 'exec "$@"', policy, server["command"], *server["args"]]
    return {**server, "command": "/bin/sh", "args": words}


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
