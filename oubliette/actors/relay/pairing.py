"""Secret by which the client of one session proves to the relay that it belongs to it."""

from __future__ import annotations

import secrets


def new_pairing_secret() -> str:
    """A fresh secret by which the client of one session proves that it belongs to it."""
    return secrets.token_urlsafe(32)
