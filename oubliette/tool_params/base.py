"""Base class of the parameters of tools."""

from __future__ import annotations

import msgspec


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of parameters: unknown ones are refused by name."""
