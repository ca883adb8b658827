"""The environment that every agent gets (DESIGN 13.2, 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        "OUBLIETTE_PAIRING_SECRET": session.pairing_secret,
        "OUBLIETTE_RELAY_SOCKET": inside.relay_socket,
    }
    if session.api_key is not None:
        env["OUBLIETTE_API_KEY"] = session.api_key
    return env
