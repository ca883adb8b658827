"""Errors as a log may show them."""

from __future__ import annotations

import traceback


def written(error: BaseException) -> str:
    """The traceback as plain text: a log must not show local variables, they may be secrets."""
    return "".join(traceback.format_exception(error))
