"""What a command printed and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Done(NamedTuple):
    """One command that has run."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]
"""Runs the command line with these words behind those of the module."""
