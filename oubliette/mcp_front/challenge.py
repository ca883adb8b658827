"""What is said to a client whose key is missing or no good, and to one that looks for OAuth.

RFC 6750, section 3: a key that is no good is `invalid_token`, with a description; a request without
any is told the scheme alone. Clients of MCP take every 401 for a wish for OAuth: they look for
metadata at well-known places, then register themselves at `/register`, and show their user the
last answer. So these places say, in the shapes of OAuth, what it is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.mcp_front.transport import error_responses

if TYPE_CHECKING:
    from starlette.types import Send

UNAUTHENTICATED: Final = -32001
REMEDY: Final = "`oubliette token create` makes one, which goes into the Authorization header"
"""Worded so that clients that hide what follows the header's name in their logs hide none of it."""
_NO_OAUTH: Final = (
    "this server takes API keys, not OAuth, and the API key that was sent is missing, wrong,"
    f" revoked or expired; {REMEDY}"
)
_REALM: Final = b'Bearer realm="oubliette"'
_METADATA: Final = "/.well-known/"
_ENDPOINTS: Final = frozenset({"/register", "/authorize", "/token"})


async def refuse_key(send: Send, message: str, *, given: bool) -> None:
    """Answer 401; `given`: a key came, and is no good."""
    challenge = _REALM
    if given:
        described = f"{message}; {REMEDY}".encode("ascii", "replace")
        challenge += b', error="invalid_token", error_description="%b"' % described
    await error_responses.refuse(
        send,
        401,
        f"{message} (hint: {REMEDY})",
        code=UNAUTHENTICATED,
        headers=[(b"www-authenticate", challenge)],
    )


def is_oauth(path: str) -> bool:
    """Whether a client that looks for OAuth asks there."""
    return path in _ENDPOINTS or path.startswith(_METADATA)


async def refuse_oauth(send: Send, path: str) -> None:
    """Say that there is no OAuth here, and what there is (RFC 6749, section 5.2)."""
    # 404 tells a client to look elsewhere; where it would register, it has looked everywhere.
    status = 404 if path.startswith(_METADATA) else 400
    told = {"error": "access_denied", "error_description": _NO_OAUTH}
    await error_responses.answer_json(send, status, told)
