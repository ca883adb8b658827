"""Authentication of requests by their key, before any body is read.

The headers Host and Origin are checked before that, in `host_and_origin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from oubliette.errors import Unauthenticated
from oubliette.tools.auth import scopes
from oubliette.tools.spec import CallContext

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from contextlib import AbstractAsyncContextManager

    from oubliette.records import Token

MAX_KEY: Final = 4096  # bytes of an Authorization header
MAX_KNOWN: Final = 4096  # tokens whose context is cached
_REFUSED: Final = "invalid or expired API key"


class KeyChecks(NamedTuple):
    """Checks of keys: before an answer, and during it."""

    verify: Callable[[str], Awaitable[Token]]
    """Key → its token; raises Unauthenticated if the key is not valid on this transport now."""
    while_good: Callable[[str], AbstractAsyncContextManager[None]]
    """Id of a token → the context of what its key does, which is cancelled when the key ends.

    Then it raises Unauthenticated.
    """


def header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the value of the first header `name` (lower case), or None."""
    for key, value in headers:
        if key == name:
            return value
    return None


class AuthenticatedKey:
    """Authenticated key of one request."""

    __slots__ = ("_authenticator", "_key", "context")

    def __init__(self, authenticator: Authenticator, key: str, context: CallContext) -> None:
        self._authenticator = authenticator
        self._key = key
        self.context = context

    def while_good(self) -> AbstractAsyncContextManager[None]:
        """The context of an answer, which is cancelled when the key ends.

        Raises:
            Unauthenticated: the key has ended, before or meanwhile.
        """
        return self._authenticator.while_good(self.context.token_id)

    async def still_good(self) -> bool:
        """Whether the key would be accepted now; long streams check it repeatedly."""
        try:
            await self._authenticator.verify(self._key)
        except Unauthenticated:
            return False
        return True


class Authenticator:
    """Authentication of Authorization headers; `verify` returns the token of a key."""

    def __init__(self, keys: KeyChecks) -> None:
        self.verify, self.while_good = keys
        self._known: dict[str, tuple[Token, CallContext]] = {}

    async def admit(self, authorization: bytes | None) -> AuthenticatedKey:
        """The key in this header.

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
        users=token.users,
    )
