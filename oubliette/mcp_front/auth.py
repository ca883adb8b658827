"""Authentication of requests: Host and Origin, then the key.

A web page in a browser can reach a server on loopback under a name of its own (DNS rebinding): so
the Host header must be one of the server's names, and an Origin header a trusted one. Both are
checked before anything else, the key before any body is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.errors import Unauthenticated
from oubliette.tools.auth import scopes
from oubliette.tools.spec import CallContext

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.config.schema import ServerConfig
    from oubliette.mcp_front.interfaces import Verify
    from oubliette.records import Token

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
MAX_KEY: Final = 4096  # bytes of an Authorization header
MAX_KNOWN: Final = 4096  # tokens whose context is cached
_REFUSED: Final = "invalid or expired API key"


def header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the value of the first header `name` (lower case), or None."""
    for key, value in headers:
        if key == name:
            return value
    return None


class HostPolicy:
    """Accepted values of the headers Host and Origin."""

    def __init__(self, config: ServerConfig) -> None:
        own = config.host if ":" not in config.host else f"[{config.host.strip('[]')}]"
        hosts = {*LOOPBACK, own.lower()}
        self._any_port = frozenset(hosts | _wildcards(config.allowed_hosts))
        self._exact = frozenset(name.lower() for name in config.allowed_hosts)
        origins = {f"{scheme}://{name}" for name in LOOPBACK for scheme in ("http", "https")}
        self._origin_any_port = frozenset(origins | _wildcards(config.allowed_origins))
        self._origin_exact = frozenset(name.lower() for name in config.allowed_origins)

    def knows_host(self, value: bytes | None) -> bool:
        """Whether the Host header names this server."""
        if value is None:
            return False
        host = value.decode("latin-1").lower()
        return host in self._exact or _without_port(host) in self._any_port

    def trusts_origin(self, value: bytes | None) -> bool:
        """Whether the page that sends the request is trusted; no Origin is accepted too."""
        if value is None:
            return True
        origin = value.decode("latin-1").lower()
        return origin in self._origin_exact or _without_port(origin) in self._origin_any_port


def _wildcards(names: Iterable[str]) -> set[str]:
    return {name.removesuffix(":*").lower() for name in names if name.endswith(":*")}


def _without_port(value: str) -> str:
    name, colon, port = value.rpartition(":")
    return name if colon and port.isdecimal() and not name.endswith(":") else value


class AuthenticatedKey:
    """Authenticated key of one request."""

    __slots__ = ("_gate", "_key", "context")

    def __init__(self, gate: Authenticator, key: str, context: CallContext) -> None:
        self._gate = gate
        self._key = key
        self.context = context

    async def still_good(self) -> bool:
        """Whether the key would be accepted now; long streams check it repeatedly."""
        try:
            await self._gate.verify(self._key)
        except Unauthenticated:
            return False
        return True


class Authenticator:
    """Authentication of Authorization headers."""

    def __init__(self, verify: Verify) -> None:
        self.verify = verify
        self._known: dict[str, tuple[Token, CallContext]] = {}

    async def admit(self, authorization: bytes | None) -> AuthenticatedKey:
        """Return the key in this header.

        Raises:
            Unauthenticated: no key, or one that is invalid on this transport.
        """
        if (
            authorization is None
            or len(authorization) > MAX_KEY
            or authorization[:7].lower() != b"bearer "
        ):
            raise Unauthenticated("an API key is needed: Authorization: Bearer <key>")
        key = authorization[7:].strip().decode("latin-1")
        token = await self.verify(key)
        if "http" not in token.transports:
            raise Unauthenticated(_REFUSED)
        known = self._known.get(token.id)
        if known is None or known[0] != token:
            if len(self._known) >= MAX_KNOWN:
                self._known.pop(next(iter(self._known)))
            known = self._known[token.id] = (token, _context(token))
        return AuthenticatedKey(self, key, known[1])


def _context(token: Token) -> CallContext:
    return CallContext(
        principal=token.principal,
        token_id=token.id,
        scope=scopes.parse(token.scope),
        transport="http",
        minted=token.session_id is not None,
        expires_at=token.expires_at,
    )
