"""BrowserPort, a port of a session's container that is open for browsers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.api.context import ClientContext

OPEN_SECONDS: Final = 1000.0
"""Time for a port to be opened, with the start of its container."""


class BrowserPort:
    """A port of a session's container that is open for browsers. Made by `Session.open_port`.

    As an `async with` block it is closed at the end of the block.

    Blocking:
        As a `with` block it is closed at the end of the block.
    """

    def __init__(self, shared: ClientContext, answer: Mapping[str, Any]) -> None:
        self._shared = shared
        self.session_id: str = answer["session_id"]
        """Id of the session."""
        self.port: int = answer["port"]
        """Its number in the container."""
        self.url: str = answer["url"]
        """Link that lets one browser in: valid once, for a minute."""
        self.address: str = answer["address"]
        """Address for browsers that were let in, and for requests with an API key of the owner."""
        self.closes_at: float = answer["closes_at"]
        """Time at which it closes at the latest, in seconds since 1970."""

    def __repr__(self) -> str:
        return f"<BrowserPort {self.address}>"

    async def close(self) -> bool:
        """Close it, and cut its connections; False if it was closed already."""
        arguments = {"session_id": self.session_id, "port": self.port}
        return bool((await self._shared.call("port_close", arguments))["closed"])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
