"""Decoding of plain `tools/call` requests: POSTs that are completely understood without the SDK.

The definition of plain is narrow on purpose. A header that appears twice, an unexpected member, a
number or a text that JSON decoders disagree about, a `_meta` of the protocol's own in a handshake
session: all these go to the SDK, which answers or refuses them. So the two paths need to agree on
valid calls only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from oubliette.errors import InvalidParameter
from oubliette.json_values import check_count
from oubliette.mcp_front import protocol
from oubliette.mcp_front.protocol import SESSION_HEADER, VERSION_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

METHOD: Final = "tools/call"
CANCELLED: Final = "notifications/cancelled"
_HANDSHAKE: Final = frozenset(version.encode() for version in protocol.HANDSHAKE_VERSIONS)
_MODERN: Final = frozenset(version.encode() for version in protocol.MODERN_VERSIONS)
_MAX_META: Final = 4096  # bytes of a `_meta` that is cached
_MAX_KNOWN: Final = 512
_MAX_NOTE: Final = 4096  # bytes of a notification that is decoded


class _Params(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] | UnsetType = UNSET
    meta: Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)


class PlainCall(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON-RPC request of a call."""

    jsonrpc: Literal["2.0"]
    id: int | str
    method: Literal["tools/call"]
    params: _Params

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The tool's arguments; None if there are none."""
        found = self.params.arguments
        return None if found is UNSET else found


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """An object without members."""


class _Client(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    version: str


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    """The minimal envelope of a modern request, which most clients send."""

    version: str = msgspec.field(name=protocol.PROTOCOL_VERSION)
    capabilities: _Nothing = msgspec.field(name=protocol.CLIENT_CAPABILITIES)
    client: _Client | UnsetType = msgspec.field(name=protocol.CLIENT_INFO, default=UNSET)
    level: protocol.Level | UnsetType = msgspec.field(name=protocol.LOG_LEVEL, default=UNSET)


class _Note(msgspec.Struct):
    method: str
    params: dict[str, Any]
    id: Raw | UnsetType = UNSET


_call = msgspec.json.Decoder(PlainCall).decode
_least = msgspec.json.Decoder(_Envelope).decode
_note = msgspec.json.Decoder(_Note).decode
_any = msgspec.json.Decoder().decode
_known_meta: dict[bytes, bytes] = {}
"""Valid envelopes of the modern generation → protocol version."""

Generation = Literal["handshake", "modern"]


def heads(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes] | None:
    """Return the headers by name; None if one appears twice."""
    found = dict(headers)
    return found if len(found) == len(headers) else None


def generation(head: Mapping[bytes, bytes]) -> Generation | None:
    """Return the generation of a POST with these headers; None: its body is no plain call."""
    if not _is_json(head.get(b"content-type", b"")) or not _takes_both(head.get(b"accept", b"")):
        return None
    version = head.get(VERSION_HEADER)
    if version is None or version in _HANDSHAKE:
        return "handshake" if SESSION_HEADER in head else None
    if version in _MODERN and head.get(b"mcp-method") == METHOD.encode():
        return "modern"
    return None


@lru_cache(maxsize=64)
def _is_json(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip() == b"application/json"


@lru_cache(maxsize=64)
def _takes_both(accept: bytes) -> bool:
    kinds = {part.partition(b";")[0].strip().lower() for part in accept.split(b",")}
    if b"*/*" in kinds:
        return True
    return bool(kinds & {b"application/json", b"application/*"}) and bool(
        kinds & {b"text/event-stream", b"text/*"}
    )


def read(
    body: bytes, kind: Generation, head: Mapping[bytes, bytes], *, sdk: bool
) -> PlainCall | None:
    """Return the call in `body`; None if it is not a plain one.

    `sdk`: the SDK is loaded, and may check envelopes with more than the minimum.
    """
    try:
        check_count(body)
        call = _call(body)
    except (InvalidParameter, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    meta = call.params.meta
    if kind == "handshake":
        return call if meta is UNSET or _is_harmless(bytes(meta)) else None
    if meta is UNSET or _envelope(bytes(meta), sdk=sdk) != head[VERSION_HEADER]:
        return None
    # Names that do not fit into a header are encoded; the SDK compares those.
    named = head.get(b"mcp-name", b"")
    if named.startswith(b"=?") or named != call.params.name.encode("utf-8", "replace"):
        return None
    return call


def _is_harmless(meta: bytes) -> bool:
    """Whether this `_meta` of a handshake call changes nothing: we report no progress."""
    found = _any(meta)
    if not isinstance(found, dict):
        return False
    members = cast("dict[str, Any]", found)
    if any(name.startswith(protocol.OWN_META) for name in members):
        return False
    return (
        "progressToken" not in members or protocol.request_id(members["progressToken"]) is not None
    )


def _envelope(meta: bytes, *, sdk: bool) -> bytes | None:
    """The protocol version of an envelope that the SDK would accept, else None."""
    known = _known_meta.get(meta)
    if known is not None:
        return known
    version = _least_version(meta) or (_version_by_sdk(meta) if sdk else None)
    if version is None or version not in protocol.MODERN_VERSIONS:
        return None
    if len(meta) <= _MAX_META:
        if len(_known_meta) >= _MAX_KNOWN:
            del _known_meta[next(iter(_known_meta))]
        _known_meta[meta] = version.encode()
    return version.encode()


def _least_version(meta: bytes) -> str | None:
    try:
        return _least(meta).version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _version_by_sdk(meta: bytes) -> str | None:
    from mcp_types import methods
    from pydantic import ValidationError

    found = _any(meta)
    if not isinstance(found, dict):
        return None
    version = cast("dict[str, Any]", found).get(protocol.PROTOCOL_VERSION)
    if not isinstance(version, str) or version not in protocol.MODERN_VERSIONS:
        return None
    if protocol.CLIENT_CAPABILITIES not in found:
        return None
    try:
        methods.validate_client_request(METHOD, version, {"name": "", "_meta": found})
    except (ValidationError, KeyError):
        return None
    return version


def cancelled(body: bytes) -> int | str | None:
    """Return the id of the request that this notification cancels, or None."""
    if len(body) > _MAX_NOTE:
        return None
    try:
        note = _note(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if note.method != CANCELLED or note.id is not UNSET:
        return None
    return protocol.request_id(note.params.get("requestId"))
