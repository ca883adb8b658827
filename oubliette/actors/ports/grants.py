"""PortGrants: who may use an open port, by tokens that are valid once and by cookies."""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

LINK_SECONDS: Final = 60.0  # for which a token is valid
MOST: Final = 32  # tokens, and cookies, of one port; the oldest is dropped for a new one


class PortGrants:
    """Tokens and cookies of one port; only digests of them are kept."""

    def __init__(self) -> None:
        self._tokens: dict[bytes, float] = {}
        self._cookies: dict[bytes, None] = {}

    def token(self, now: float) -> str:
        """Return a new token; `now` is the monotonic time."""
        made = secrets.token_urlsafe(24)
        if len(self._tokens) >= MOST:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[_digest(made)] = now + LINK_SECONDS
        return made

    def redeem(self, token: str, now: float) -> str | None:
        """Return a cookie for a token, which is used up; None if it is not valid."""
        until = self._tokens.pop(_digest(token), None)
        if until is None or until < now:
            return None
        made = secrets.token_urlsafe(32)
        if len(self._cookies) >= MOST:
            del self._cookies[next(iter(self._cookies))]
        self._cookies[_digest(made)] = None
        return made

    def admits(self, cookie: str) -> bool:
        """Whether this is a cookie of the port."""
        return _digest(cookie) in self._cookies


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
