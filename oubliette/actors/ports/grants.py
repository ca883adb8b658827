"""PortGrants: who may use an open port, by tokens that are valid once and by cookies.

Each belongs to the API key with which its link was made, and ends with that one.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

LINK_SECONDS: Final = 60.0  # for which a token is valid
MOST: Final = 32  # tokens, and cookies, of one port; the oldest is dropped for a new one


class PortGrants:
    """Tokens and cookies of one port; only digests of them are kept."""

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
