"""The environment that every agent gets (DESIGN 13.2, 4.1)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from oubliette.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.port import AgentSession
    from oubliette.runtime.containers.port import Inside


def base_environment(session: AgentSession, inside: Inside) -> dict[str, str]:
    """What the client and the agent read to know who they are; nothing of the server's own.

    Secrets are here because a command line can be read by every process of the container.
    """
    home = inside.path(session.home)
    env = {
        **inside.env,
        **session.env,
        "HOME": home,
        "OUBLIETTE_AGENT_HOME": home,
        "OUBLIETTE_SESSION_ID": session.session_id,
        "OUBLIETTE_PROJECT_ID": session.project_id,
        "OUBLIETTE_DEPTH": str(session.depth),
        "OUBLIETTE_WORKSPACE": inside.path(session.cwd),
        "OUBLIETTE_PAIRING_SECRET": session.pairing_secret,
        "OUBLIETTE_RELAY_SOCKET": inside.relay_socket,
    }
    if session.api_key is not None:
        env["OUBLIETTE_API_KEY"] = session.api_key
    return env


def client_environment(session: AgentSession, inside: Inside) -> dict[str, str]:
    """What our MCP server needs, for agents that give it an environment of its own."""
    everything = base_environment(session, inside)
    names = {"PATH", "LANG", "HOME"}
    return {
        name: value
        for name, value in everything.items()
        if name in names or name.startswith("OUBLIETTE_")
    }


def resolve(reference: str, environ: Mapping[str, str] = os.environ) -> str:
    """The secret that `env:NAME` or `file:PATH` refers to.

    Raises:
        ConfigError: it is no reference, or there is nothing; says which, and never the secret.
    """
    kind, _, name = reference.partition(":")
    if kind == "env":
        found = environ.get(name)
        if not found:
            raise ConfigError(f"the environment variable {name} is not set")
        return found
    if kind == "file":
        try:
            return Path(name).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name} cannot be read: {error}") from error
    raise ConfigError(
        "a secret is given by reference, not by itself", hint="env:NAME or file:/path"
    )
