"""Droid as a program: its settings, its environment (reference: agents.md 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.errors import ConfigError
from oubliette.runtime.agents.acp_runtime import MCP_SERVER, environment
from oubliette.runtime.agents.droid import DroidAdapter
from oubliette.runtime.agents.environment import base_environment, client_environment, resolve
from oubliette.runtime.agents.executor import StreamExecution
from oubliette.runtime.agents.port import AgentCommand, AgentFile
from oubliette.runtime.agents.program import Program
from oubliette.runtime.agents.turns import Opening, object_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.port import AgentSession, Availability
    from oubliette.runtime.containers.port import Inside, Mount

SECTION: Final = "droid"
KEY: Final = "OUBLIETTE_MODEL_KEY"
"""Variable with the model's key: Droid puts it in where its settings name it."""


class DroidRuntime(StreamExecution):
    """`AgentRuntime` of Droid."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._program = Program("droid", package="droid", section=SECTION)
        self._config: dict[str, Any] = dict(config or {})
        self._env: dict[str, str] = {}
        self._key = ""
        self._take()

    @property
    def name(self) -> str:
        """`droid`."""
        return "droid"

    @property
    def reattach(self) -> bool:
        """A turn's output is read again from its beginning."""
        return True

    @property
    def resume(self) -> bool:
        """Conversations lie in its HOME."""
        return True

    async def initialize(self, config: Mapping[str, Any]) -> None:
        """Take `[droid]`."""
        self._config |= {key: value for key, value in config.items() if value is not None}
        self._take()

    def _take(self) -> None:
        config = self._config
        self._program.configure(config.get("path"))
        self._env = environment(config.get("env") or (), SECTION)
        if (reference := config.get("api_key")) is not None:
            try:
                self._key = resolve(reference)
            except ConfigError as error:
                raise ConfigError(f"{SECTION}.api_key: {error.message}", hint=error.hint) from error
        if config.get("base_url") and not config.get("model"):
            raise ConfigError(f"{SECTION}.model: needed beside {SECTION}.base_url")

    async def is_available(self) -> Availability:
        """Where its program is."""
        return self._program.availability

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Its program."""
        return self._program.mounts

    def _model(self, session: AgentSession) -> str | None:
        model = session.model or self._config.get("model")
        return f"custom:{model}-0" if model and self._config.get("base_url") else model

    def command(self, session: AgentSession, inside: Inside) -> AgentCommand:
        """Settings without secrets in its HOME, the rest in the environment."""
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
        stream = ("--input-format", "stream-jsonrpc", "--output-format", "stream-jsonrpc")
        return AgentCommand(
            argv=(self._program.inside(inside), "exec", *stream),
            env={
                **base_environment(session, inside),
                "FACTORY_DROID_AUTO_UPDATE_ENABLED": "false",
                KEY: self._key or "none",
                **self._env,
            },
            cwd=inside.path(session.cwd),
            files=(
                AgentFile(path=".factory/settings.json", content=msgspec.json.encode(settings)),
            ),
        )

    def adapter(
        self, session: AgentSession, inside: Inside, state: Mapping[str, Any] | None = None
    ) -> DroidAdapter:
        """Opens a session with our MCP server and those of the project that are programs."""
        ours: dict[str, Any] = {
            "name": MCP_SERVER,
            "command": inside.python,
            "args": ["-I", inside.zipapp, "client"],
            "env": client_environment(session, inside),
        }
        theirs: list[dict[str, Any]] = [
            {
                "name": name,
                "command": config["command"],
                "args": config.get("args") or [],
                "env": config.get("env") or {},
            }
            for name, config in (
                (name, object_of(value)) for name, value in sorted(session.mcp_servers.items())
            )
            if name != MCP_SERVER and "command" in config
        ]
        opening = Opening(
            cwd=inside.path(session.cwd),
            mcp_servers=(ours, *theirs),
            autonomy=session.autonomy,
            agent_session_id=session.agent_session_id,
            model=self._model(session),
        )
        return DroidAdapter(opening, state)

    async def close(self) -> None:
        """There is nothing to let go of."""
