"""Runtime of OpenCode: `opencode serve` behind the bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oubliette.runtime.agents.base import AgentCommand
from oubliette.runtime.agents.environment import client_environment
from oubliette.runtime.agents.handshake_adapter import Opening, object_of
from oubliette.runtime.agents.opencode.adapter import MCP_SERVER, OpencodeAdapter
from oubliette.runtime.agents.opencode.program import TOOL_TIMEOUT, OpencodeProgram
from oubliette.runtime.agents.prices import costs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.base import AgentSession
    from oubliette.runtime.containers.base import Inside

SUBCOMMAND: Final = "opencode"
"""Command of the zipapp that runs the bridge."""


class OpencodeRuntime(OpencodeProgram):
    """`AgentRuntime` of OpenCode."""

    @property
    def name(self) -> str:
        return "opencode"

    @property
    def slow_start(self) -> str:
        """Advice: it waits for every MCP server before the first turn."""
        return (
            "an MCP server of the project that does not answer holds it up for 30 seconds;"
            " see its stderr"
        )

    def command(self, session: AgentSession, inside: Inside) -> AgentCommand:
        """The command of the bridge, which starts the server and generates its password."""
        settings = self._settings(session)
        settings["mcp"] = _servers(session, inside)
        program = f"--program={self._program.inside(inside)}"
        return AgentCommand(
            argv=(*inside.program(SUBCOMMAND), program),
            env=self._environment(session, inside, settings),
            cwd=inside.path(session.cwd),
        )

    def adapter(
        self, session: AgentSession, inside: Inside, state: Mapping[str, Any] | None = None
    ) -> OpencodeAdapter:
        opening = Opening(
            cwd=inside.path(session.cwd),
            autonomy=session.autonomy,
            agent_session_id=session.agent_session_id,
            fork_of=session.fork_of,
            obeys=self.obeys,
            costs=costs_of(self._config, self._prices),
        )
        return OpencodeAdapter(opening, state, model_url=self._config.get("base_url"))


def _servers(session: AgentSession, inside: Inside) -> dict[str, Any]:
    """Return our servers and the project's, in OpenCode's format; invalid ones are left out."""
    found: dict[str, Any] = {}
    for name, config in sorted(session.mcp_servers.items()):
        server = _server(object_of(config))
        if server is not None:
            found[name] = server
    found[MCP_SERVER] = {
        "type": "local",
        "command": [*inside.program("client")],
        "environment": client_environment(session, inside),
        "enabled": True,
        "timeout": TOOL_TIMEOUT,
    }
    return found


def _server(fields: dict[str, Any]) -> dict[str, Any] | None:
    if isinstance(fields.get("command"), str):
        arguments = [str(argument) for argument in fields.get("args") or ()]
        return {
            "type": "local",
            "command": [fields["command"], *arguments],
            "environment": _texts(fields.get("env")),
            "enabled": True,
        }
    if isinstance(fields.get("url"), str):
        headers = _texts(fields.get("headers"))
        # No person is connected to log in.
        remote = {"type": "remote", "url": fields["url"], "headers": headers, "oauth": False}
        return {**remote, "enabled": True}
    return None


def _texts(values: object) -> dict[str, str]:
    return {name: str(value) for name, value in object_of(values).items()}
