"""Answers to clients whose key is missing or invalid, and to those that look for OAuth.

RFC 6750, section 3: an invalid key is answered with `invalid_token` and a description, a request
without a key with the scheme only. MCP clients take every 401 as a request for OAuth: they look for
metadata at well-known paths, then register themselves at `/register`, and show the last answer to
their user. So these paths explain the missing key, in the error formats of OAuth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.mcp_front.transport import error_responses

if TYPE_CHECKING:
    from starlette.types import Send

UNAUTHENTICATED: Final = -32001
REMEDY: Final = "`oubliette token create` makes one, which goes into the Authorization header"
"""Remedy, worded for clients that mask what follows a header's name in their logs."""
_NO_OAUTH: Final = (
    "this server takes API keys, not OAuth, and the API key that was sent is missing, wrong,"
    f" revoked or expired; {REMEDY}"
)
_REALM: Final = b'Bearer realm="oubliette"'
_METADATA: Final = "/.well-known/"
_ENDPOINTS: Final = frozenset({"/register", "/authorize", "/token"})


async def refuse_key(send: Send, message: str, *, given: bool) -> None:
    """Answer 401; `given`: the request has a key, but an invalid one."""
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
    """Whether `path` is one at which clients look for OAuth."""
    return path in _ENDPOINTS or path.startswith(_METADATA)


async def refuse_oauth(send: Send, path: str) -> None:
    """Answer that there is no OAuth here, and how keys are made (RFC 6749, section 5.2)."""
    # 404 makes a client look elsewhere; registration is the last path that it tries.
    status = 404 if path.startswith(_METADATA) else 400
    body = {"error": "access_denied", "error_description": _NO_OAUTH}
    await error_responses.answer_json(send, status, body)
