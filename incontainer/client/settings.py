"""Process settings of the client, from its environment."""

from __future__ import annotations

from .. import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

DEFAULT_SOCKET = "/mcp/relay.sock"
CONFIG_GRACE = 2.0  # seconds from the start that a tool list waits for the caller's tools …
CONFIG_GRACE_BARE = 0.1  # … and without a secret, where none may ever come
OUTAGE_SECONDS = 600.0  # a call waits this long for a lost server, unless the environment sets it


class Settings:
    """Settings from the environment; the secrets are removed from it."""

    def __init__(self, environ: MutableMapping[str, str], arguments: list[str]) -> None:
        """Read the settings.

        Raises:
            wire.WireError: A word that the relay's header cannot carry is missing or malformed.

        """
        secret = environ.pop("OUBLIETTE_PAIRING_SECRET", "") or None
        self.api_key = environ.pop("OUBLIETTE_API_KEY", "") or None
        self.socket = arguments[0] if arguments else environ.get("OUBLIETTE_RELAY_SOCKET", "")
        self.socket = self.socket or DEFAULT_SOCKET
        project = environ.get("OUBLIETTE_PROJECT_ID", "")
        session = environ.get("OUBLIETTE_SESSION_ID", "")
        if not project or (secret and not session):
            raise wire.WireError(
                "OUBLIETTE_PROJECT_ID is not set: this program is started by an agent in a "
                "container of Oubliette"
                if not project
                else "OUBLIETTE_PAIRING_SECRET is set, but OUBLIETTE_SESSION_ID is not"
            )
        paired = wire.Downstream(project, session, secret)
        self.header = paired if secret else wire.Downstream(project)
        self.header.line()  # refuses what the header cannot carry
        self.session_id = session
        self.workspace = environ.get("OUBLIETTE_WORKSPACE", "")
        self.grace = CONFIG_GRACE if secret else CONFIG_GRACE_BARE
        # The guest keeps the agent for this long, so an agent may wait for the answer.
        self.outage = _seconds(environ.get("OUBLIETTE_OUTAGE_SECONDS", ""))
        self.call_grace = self.outage if secret else CONFIG_GRACE_BARE


def _seconds(text: str) -> float:
    """Parse a time of the environment; the guest's default if there is none."""
    try:
        seconds = float(text)
    except ValueError:
        return OUTAGE_SECONDS
    return seconds if seconds > 0 else OUTAGE_SECONDS
