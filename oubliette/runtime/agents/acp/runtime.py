"""Runtime of any ACP agent on its standard streams, by its command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette.errors import ConfigError
from oubliette.runtime.agents.acp.adapter import AcpAdapter
from oubliette.runtime.agents.acp.known import UNKNOWN, Known, known
from oubliette.runtime.agents.acp.places import (
    check_files,
    check_session_files,
    files_of,
    mounts_of,
    placed,
)
from oubliette.runtime.agents.base import AgentCommand, Availability
from oubliette.runtime.agents.environment import (
    base_environment,
    check_variables,
    client_environment,
    environment,
)
from oubliette.runtime.agents.executor import StreamExecution
from oubliette.runtime.agents.handshake_adapter import Opening
from oubliette.runtime.agents.program import Program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.base import AgentSession
    from oubliette.runtime.containers.base import Inside, Mount

DEAF: Final = frozenset(("codex", "codex-acp", "qwen"))
"""Programs that list the tools of an MCP server once, at their start, and ignore later changes
(seen with Codex 0.169 and Qwen Code 0.24)."""

MCP_SERVER: Final = "oubliette"
"""Name of our MCP server; most agents prefix the names of its tools with it."""


class AcpRuntime(StreamExecution):
    """`AgentRuntime` of an agent that the configuration names, or that a package adds.

    Args:
        name: name of the agent in requests for sessions.
        command: default command line.
        mounts: mounts from this machine.
        section: its section of the configuration.
    """

    def __init__(
        self,
        name: str = "acp",
        command: tuple[str, ...] = (),
        mounts: tuple[Mount, ...] = (),
        *,
        section: str = "acp",
    ) -> None:
        self._name = name
        self._section = section
        self._command = command
        self._mounts = mounts
        self._given: tuple[Mount, ...] = ()
        """As configured."""
        self._env: tuple[str, ...] = ()
        self._files: tuple[str, ...] = ()
        self._session_files: tuple[str, ...] = ()
        self._model: str | None = None
        self._mode: str | None = None
        self._program: Program | None = None
        self._hears: bool | None = None
        self._trusts = False

    @property
    def name(self) -> str:
        """`acp`, or the package's name for it."""
        return self._name

    @property
    def resume(self) -> bool:
        """Whether conversations resume: by `session/resume` or `session/load`, if supported."""
        return True

    @property
    def hears_tool_changes(self) -> bool:
        """Whether tool changes reach it: as configured, else as known of the program."""
        if self._hears is not None:
            return self._hears
        return not any(DEAF.intersection(word.split("/")) for word in self._command)

    async def initialize(self, config: Mapping[str, Any]) -> None:
        """Apply its section of the configuration.

        Raises:
            ConfigError: names the key.
        """
        section = self._section
        self._trusts = bool(config.get("trust_repository"))
        self._hears = config.get("hears_tool_changes", self._hears)
        self._command = tuple(config.get("command") or self._command)
        self._env = tuple(config.get("env") or ())
        check_variables(self._env, section)
        self._given = mounts_of(config.get("mounts") or (), section)
        self._files = tuple(config.get("files") or ())
        check_files(self._files, section)
        self._session_files = tuple(config.get("session_files") or ())
        check_session_files(self._session_files, section)
        self._model, self._mode = config.get("model"), config.get("mode")
        path = config.get("path")
        self._program = None
        if path is not None:
            if not self._command:
                raise ConfigError(f"{section}.path: without {section}.command nothing is started")
            name = self._command[0].rpartition("/")[2]
            self._program = Program(name, package=name, section=section)
            self._program.configure(path)

    async def is_available(self) -> Availability:
        if self._command:
            return Availability(ok=True)
        return Availability(
            ok=False,
            reason=f"{self._section}.command is not set",
            remedy=f'set command in [{self._section}], such as ["gemini", "--acp"]',
        )

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Return mounts of its program and the configured ones; the container has the rest."""
        program = self._program.mounts if self._program is not None else ()
        return self._mounts + program + self._given

    def command(self, session: AgentSession, inside: Inside) -> AgentCommand:
        first, *more = (placed(word, self._given, inside) for word in self._command)
        program = self._program.inside(inside) if self._program is not None else first
        return AgentCommand(
            argv=(program, *more),
            env={
                **base_environment(session, inside),
                **environment(self._env, self._section, session.credentials),
            },
            cwd=inside.path(session.cwd),
            files=(
                *self._known.files(inside.path(session.cwd)),
                *files_of(self._files, self._section, session),
            ),
        )

    @property
    def session_files(self) -> tuple[str, ...]:
        """Files of its conversations, as configured, or as known of the program."""
        return self._session_files or known(self._command).session_files

    @property
    def _known(self) -> Known:
        if self._trusts:
            return Known(obeys="whatever a repository says in its settings (trust_repository)")
        return known(self._command)

    def adapter(
        self, session: AgentSession, inside: Inside, state: Mapping[str, Any] | None = None
    ) -> AcpAdapter:
        """An adapter that opens a session with our MCP server and those of the project."""
        chosen = msgspec.structs.replace(
            opening(session, inside, self._known),
            model=session.model or self._model,
            mode=self._mode or self._known.mode,
        )
        return AcpAdapter(chosen, state)

    async def close(self) -> None:
        """Do nothing: this object holds no resources."""


def opening(session: AgentSession, inside: Inside, about: Known = UNKNOWN) -> Opening:
    """Return the parameters of `session/new`, and the warnings for the session."""
    command, *arguments = inside.program("client")
    ours = {
        "name": MCP_SERVER,
        "command": command,
        "args": arguments,
        "env": _pairs(client_environment(session, inside)),
    }
    theirs = [
        server
        for name, config in sorted(session.mcp_servers.items())
        if name != MCP_SERVER and (server := _server(name, config)) is not None
    ]
    return Opening(
        cwd=inside.path(session.cwd),
        mcp_servers=(ours, *theirs),
        autonomy=session.autonomy,
        agent_session_id=session.agent_session_id,
        fork_of=session.fork_of if about.forks else None,
        forks=about.forks,
        obeys=about.obeys,
        meta=about.meta,
        mode=about.mode,
    )


def _server(name: str, config: object) -> dict[str, Any] | None:
    """Return an entry of a project's `mcp_servers` in ACP's format; None if it is invalid."""
    if not isinstance(config, dict):
        return None
    fields = cast("dict[str, Any]", config)
    if isinstance(fields.get("command"), str):
        return {
            "name": name,
            "command": fields["command"],
            "args": [str(argument) for argument in fields.get("args") or ()],
            "env": _pairs(fields.get("env") or {}),
        }
    if isinstance(fields.get("url"), str):
        kind = "sse" if fields.get("type") == "sse" else "http"
        headers = _pairs(fields.get("headers") or {})
        return {"type": kind, "name": name, "url": fields["url"], "headers": headers}
    return None


def _pairs(values: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"name": name, "value": str(value)} for name, value in values.items()]
