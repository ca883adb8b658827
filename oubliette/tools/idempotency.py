"""Idempotency keys, with which a repeated request has no second effect."""

from __future__ import annotations

import hashlib

import msgspec

from oubliette.actors.messages import Idempotency


def claim(tool: str, params: msgspec.Struct) -> Idempotency | None:
    """Return the claim of `params.idempotency_key`; None without one.

    The digest covers every other parameter, with its default if it is absent, so that two forms of
    the same request have the same digest.
    """
    key: str | None = getattr(params, "idempotency_key", None)
    if key is None:
        return None
    rest = msgspec.structs.asdict(params)
    del rest["idempotency_key"]
    text = msgspec.json.encode(rest, order="sorted")
    return Idempotency(key=key, tool=tool, digest=hashlib.sha256(text).digest())
