"""Requests that may be sent again: the same key never buys a second thing."""

from __future__ import annotations

import hashlib

import msgspec

from oubliette.actors.messages import Idempotency


def claim(tool: str, params: msgspec.Struct) -> Idempotency | None:
    """The claim that `params.idempotency_key` makes; None without one.

    The digest covers every other parameter, with its default where it was left out, so that the
    same request in other words is the same request.
    """
    key: str | None = getattr(params, "idempotency_key", None)
    if key is None:
        return None
    rest = msgspec.structs.asdict(params)
    del rest["idempotency_key"]
    text = msgspec.json.encode(rest, order="sorted")
    return Idempotency(key=key, tool=tool, digest=hashlib.sha256(text).digest())
