"""BrowserPort, a port of a session's container that is open for browsers; its calls block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from oubliette.api import browser_port as twins
    from oubliette.sync.portal_thread import PortalThread


class BrowserPort:
    """A port of a session's container that is open for browsers. Made by `Session.open_port`.

    As a `with` block it is closed at the end of the block.
    """

    def __init__(self, thread: PortalThread, twin: twins.BrowserPort) -> None:
        self._thread = thread
        self._twin = twin
        self.session_id: str = twin.session_id
        """Id of the session."""
        self.port: int = twin.port
        """Its number in the container."""
        self.url: str = twin.url
        """Link that lets one browser in: valid once, for a minute."""
        self.address: str = twin.address
        """Address for browsers that were let in, and for requests with an API key of the owner."""
        self.closes_at: float = twin.closes_at
        """Time at which it closes at the latest, in seconds since 1970."""

    def __repr__(self) -> str:
        return repr(self._twin)

    def close(self) -> bool:
        """Close it, and cut its connections; False if it was closed already."""
        return self._thread.call(self._twin.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
