"""Suggestion of the known name that is nearest to an unknown one, for the hints of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean NEAREST? ", with the blank, or "" if no known name is near."""
    import difflib  # takes a while to import, and most names are right

    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}? " if near else ""
