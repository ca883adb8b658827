"""GitRequest, what a client of git asks for by the path, the query and the headers of a request.

The protocol is the one of git's documentation (`gitprotocol-http`), of which fetching is served:

    GET  /git/<project>[.git]/info/refs?service=git-upload-pack
    POST /git/<project>[.git]/git-upload-pack
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

import msgspec

from oubliette.errors import OublietteError
from oubliette.mcp_front.auth import MAX_KEY, header

if TYPE_CHECKING:
    from starlette.types import Scope

GIT: Final = "/git/"
UPLOAD: Final = "git-upload-pack"
RECEIVE: Final = "git-receive-pack"
REQUEST_TYPE: Final = b"application/x-git-upload-pack-request"
_PATH: Final = re.compile(
    r"/git/(?P<project>[^/]{1,100}?)(?:\.git)?/(?P<what>info/refs|git-[a-z]+-pack)"
)
_PROTOCOL: Final = re.compile(rb"[a-z0-9=.:_-]{1,100}")
_BASIC: Final = b"basic "


class GitRefused(OublietteError):
    """The request is refused with an HTTP status, which is an answer for git's clients."""

    code = "git_refused"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class GitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to fetch from a project's repository."""

    project_id: str
    """As the client has it: it may be anything."""
    advertise: bool
    """Whether it asks for the list of refs, and not for objects."""
    protocol: str
    """Value for `GIT_PROTOCOL`; empty: version 0."""
    compressed: bool
    """Whether its body is compressed by gzip."""

    @property
    def version_2(self) -> bool:
        """Whether the client uses version 2 of the protocol."""
        return "version=2" in self.protocol.split(":")


def parse(scope: Scope) -> GitRequest:
    """Return what a request asks for.

    Raises:
        GitRefused: it is not one to fetch; has the status and the reason.
    """
    match = _PATH.fullmatch(scope["path"])
    if match is None:
        raise GitRefused(404, "not found; the address of a repository is /git/PROJECT")
    advertise = match["what"] == "info/refs"
    service = match["what"]
    if advertise:
        query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=10)
        service = query.get("service", [""])[0]
    if service == RECEIVE:
        raise GitRefused(
            403,
            "this repository is read-only: git push changes nothing here;"
            " session_merge merges what a session did into a branch",
        )
    if service != UPLOAD:
        raise GitRefused(403, "only git's smart protocol is served here, to fetch and to clone")
    if scope["method"] != ("GET" if advertise else "POST"):
        raise GitRefused(405, f"{scope['method']} is not served here")
    headers = scope["headers"]
    coding = (header(headers, b"content-encoding") or b"identity").strip().lower()
    if not advertise and header(headers, b"content-type") != REQUEST_TYPE:
        raise GitRefused(415, f"the body has to be of the type {REQUEST_TYPE.decode()}")
    if coding not in {b"identity", b"gzip", b"x-gzip"}:
        raise GitRefused(415, "the body may be compressed by gzip only")
    protocol = header(headers, b"git-protocol") or b""
    return GitRequest(
        project_id=match["project"],
        advertise=advertise,
        protocol=protocol.decode() if _PROTOCOL.fullmatch(protocol) else "",
        compressed=coding != b"identity",
    )


def as_bearer(authorization: bytes | None) -> bytes | None:
    """An Authorization header as the front knows it: git sends a key as a password."""
    if (
        authorization is None
        or len(authorization) > MAX_KEY
        or authorization[: len(_BASIC)].lower() != _BASIC
    ):
        return authorization
    try:
        given = base64.b64decode(authorization[len(_BASIC) :].strip(), validate=True)
    except binascii.Error:
        return None
    return b"Bearer " + given.partition(b":")[2]
