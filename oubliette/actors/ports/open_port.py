"""OpenedPort: the state of one open port, who may use it, and the connections through it."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from oubliette.actors.ports.messages import PortInfo, PortLink

if TYPE_CHECKING:
    from asyncio import StreamWriter

    from oubliette.kit import Deferred
    from oubliette.kit.timers import ActorTimer, PipedTask

LINK_SECONDS: Final = 60.0  # for which a token is valid
MOST: Final = 32  # tokens, and cookies, of one port; the oldest is dropped for a new one


class PortGrants:
    """Tokens, valid once, and cookies of one port; only digests of them are kept.

    Each belongs to the API key with which its link was made, and ends with that one.
    """

    def __init__(self) -> None:
        self._tokens: dict[bytes, tuple[float, str]] = {}
        self._cookies: dict[bytes, str] = {}

    def token(self, now: float, token_id: str) -> str:
        """Return a new token of this key; `now` is the wall-clock second."""
        made = secrets.token_urlsafe(24)
        if len(self._tokens) >= MOST:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[_digest(made)] = (now + LINK_SECONDS, token_id)
        return made

    def redeem(self, token: str, now: float) -> str | None:
        """Return a cookie for a token, which is used up; None if it is not valid."""
        until, token_id = self._tokens.pop(_digest(token), (now, None))
        if token_id is None or until < now:
            return None
        made = secrets.token_urlsafe(32)
        if len(self._cookies) >= MOST:
            del self._cookies[next(iter(self._cookies))]
        self._cookies[_digest(made)] = token_id
        return made

    def admits(self, cookie: str) -> str | None:
        """Return the id of the key that this cookie of the port belongs to; None: it is none."""
        return self._cookies.get(_digest(cookie))

    def end(self, token_id: str) -> None:
        """Drop the tokens and cookies of a key."""
        self._tokens = {k: of for k, of in self._tokens.items() if of[1] != token_id}
        self._cookies = {k: of for k, of in self._cookies.items() if of != token_id}


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


@dataclass(eq=False)
class PortConnection:
    """A connection to an open port."""

    token_id: str
    """The key that let it in, itself or by a link."""
    writer: StreamWriter | None = None
    """None: it is being opened."""


@dataclass(eq=False)
class OpenedPort:
    """One open port; only the PortsActor uses it."""

    name: str
    session_id: str
    project_id: str
    principal: str
    port: int
    session: str
    """Name of the SessionActor."""
    unit: str
    """Name of the ContainerSupervisor."""
    opened_at: float
    closes_at: float
    """Wall-clock seconds."""
    container_id: str | None = None
    """None: the container is being started."""
    grants: PortGrants = field(default_factory=PortGrants)
    connections: dict[str, PortConnection] = field(default_factory=dict[str, PortConnection])
    """By id."""
    waiting: list[tuple[Deferred, str]] = field(default_factory=list["tuple[Deferred, str]"])
    """Those who wait for the container, and the ids of their keys."""
    timer: ActorTimer | None = None
    watch: PipedTask | None = None
    """Waits for the end of the container."""

    @property
    def lease(self) -> str:
        return f"port:{self.name}"

    def info(self) -> PortInfo:
        return PortInfo(
            name=self.name,
            session_id=self.session_id,
            port=self.port,
            opened_at=self.opened_at,
            closes_at=self.closes_at,
            connections=len(self.connections),
        )

    def link(self, now: float, token_id: str) -> PortLink:
        """Return it with a new token of this key; `now` is the wall-clock second."""
        token = self.grants.token(now, token_id)
        return PortLink(info=self.info(), token=token, seconds=LINK_SECONDS)

    def cut(self, *connection_ids: str) -> None:
        """Close these connections at once."""
        for connection_id in connection_ids:
            writer = self.connections.pop(connection_id).writer
            if writer is not None:
                writer.transport.abort()
