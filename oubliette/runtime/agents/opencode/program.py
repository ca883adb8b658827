"""OpenCode's program and configuration, and its ACP variant, `opencode acp`.

All its configuration is in its environment; that of the repository is disabled, because a hostile
one would start programs by it. OpenCode's own switch for that does not work (1.18): a guard of ours
does (`incontainer/bridges/opencode/guard.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.runtime.agents.acp.adapter import AcpAdapter
from oubliette.runtime.agents.acp.known import Known
from oubliette.runtime.agents.acp.runtime import opening
from oubliette.runtime.agents.base import AgentCommand
from oubliette.runtime.agents.environment import (
    base_environment,
    environment,
    secret,
)
from oubliette.runtime.agents.prices import costs_of
from oubliette.runtime.agents.program_runtime import ConfiguredProgram

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.base import AgentSession
    from oubliette.runtime.containers.base import Inside

SECTION: Final = "opencode"
SUBCOMMAND: Final = "opencode-acp"
"""Command of the zipapp that starts OpenCode behind the guard."""
TRUSTED: Final = "OUBLIETTE_TRUST_REPOSITORY"
"""Command that starts OpenCode without the guard."""
OBEYS: Final = "plugins, MCP servers and settings in .opencode and opencode.json (trust_repository)"
PROVIDER: Final = "oubliette"
"""Name of the provider made from `base_url`."""
TOOL_TIMEOUT: Final = 25 * 3600 * 1000
"""Milliseconds that OpenCode waits for an MCP tool: our deadlines are earlier."""

_DISABLED: Final = (
    "AUTOUPDATE",
    "DEFAULT_PLUGINS",
    "LSP_DOWNLOAD",
    "MODELS_FETCH",
    "PROJECT_CONFIG",
    "SHARE",
)
_PERMISSIONS: Final[dict[str, dict[str, str]]] = {
    "off": {"*": "allow"},
    "high": {"*": "allow", "external_directory": "ask", "doom_loop": "ask"},
    "medium": {"*": "allow", "bash": "ask", "external_directory": "ask", "doom_loop": "ask"},
    "low": {"*": "ask", "read": "allow", "glob": "allow", "grep": "allow", "list": "allow"},
    "ask": {"*": "ask"},
}


_DATA: Final = ".local/share/opencode"
SESSION_FILES: Final = (
    *(f"{_DATA}/opencode.db{end}" for end in ("", "-wal", "-shm")),
    f"{_DATA}/storage",
)
"""Files and folders, in HOME, with its conversations."""


class OpencodeProgram(ConfiguredProgram):
    """Common part of both OpenCode agents: one program, one configuration."""

    program = "opencode"
    package = "opencode-ai"

    @property
    def session_files(self) -> tuple[str, ...]:
        """Its conversations; `auth.json` with credentials is beside them."""
        return SESSION_FILES

    def _environment(
        self, session: AgentSession, inside: Inside, settings: Mapping[str, Any]
    ) -> dict[str, str]:
        """Return its whole configuration; a repository's is not read, unless it is trusted."""
        trusted = self._trusts
        disabled = [name for name in _DISABLED if not (trusted and name == "PROJECT_CONFIG")]
        return {
            **base_environment(session, inside),
            **{f"OPENCODE_DISABLE_{name}": "1" for name in disabled},
            **({TRUSTED: "1"} if trusted else {}),
            **environment(self._config.get("env") or (), SECTION, session.credentials),
            "OPENCODE_CONFIG_CONTENT": msgspec.json.encode(settings).decode(),
        }

    @property
    def _trusts(self) -> bool:
        return bool(self._config.get("trust_repository"))

    @property
    def obeys(self) -> str:
        """Remaining control of a repository over it, as reported to its sessions."""
        return OBEYS if self._trusts else ""

    def _settings(self, session: AgentSession) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "autoupdate": False,
            "share": "disabled",
            "snapshot": False,
            "lsp": False,
            "formatter": False,
            "experimental": {"mcp_timeout": TOOL_TIMEOUT},
            "permission": {**_PERMISSIONS[session.autonomy], "question": "deny"},
        }
        model = session.model or self._config.get("model")
        if model is None:
            return settings
        base_url = self._config.get("base_url")
        if base_url is not None:
            key = "none"
            if (reference := self._config.get("api_key")) is not None:
                key = secret(reference, f"{SECTION}.api_key", session.credentials)
            settings["provider"] = {PROVIDER: self._provider(model, base_url, key)}
            settings["enabled_providers"] = [PROVIDER]
            model = f"{PROVIDER}/{model}"
        return {**settings, "model": model, "small_model": model}

    def _provider(self, model: str, base_url: str, key: str) -> dict[str, Any]:
        limit = {
            "context": self._config.get("context_tokens") or 200_000,
            "output": self._config.get("output_tokens") or 32_000,
        }
        cost = {} if self._prices is None else {"cost": msgspec.structs.asdict(self._prices)}
        return {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Oubliette",
            "options": {"baseURL": base_url, "apiKey": key},
            "models": {model: {"name": model, "tool_call": True, "limit": limit, **cost}},
        }

    async def close(self) -> None:
        """Do nothing: this object holds no resources."""


class OpencodeAcpRuntime(OpencodeProgram):
    """`AgentRuntime` of OpenCode over ACP."""

    @property
    def name(self) -> str:
        return "opencode-acp"

    def command(self, session: AgentSession, inside: Inside) -> AgentCommand:
        program = f"--program={self._program.inside(inside)}"
        return AgentCommand(
            argv=(*inside.program(SUBCOMMAND), program),
            env=self._environment(session, inside, self._settings(session)),
            cwd=inside.path(session.cwd),
        )

    def adapter(
        self, session: AgentSession, inside: Inside, state: Mapping[str, Any] | None = None
    ) -> AcpAdapter:
        """An adapter that opens a session with our MCP server and those of the project."""
        # What `opencode acp` 1.18 forks stays in the other session's folder, and takes no prompt.
        about = Known(obeys=self.obeys, forks=False)
        chosen = opening(session, inside, about)
        costs = costs_of(self._config, self._prices)
        return AcpAdapter(msgspec.structs.replace(chosen, costs=costs), state)
