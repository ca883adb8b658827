"""Redaction of secrets in recordings, and of values that differ from run to run in requests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

REDACTED: Final = "REDACTED"
SHORTEST: Final = 6
"""Characters of the shortest secret that is searched; shorter ones are parts of other words."""
_KEYS: Final = re.compile(
    r"\b(?:sk|pk|rk|xai|gsk|fk|obl|ghp|gho|ghs|github_pat|hf|AIza)[-_][A-Za-z0-9_\-]{16,}"
    r"|\bAIza[A-Za-z0-9_\-]{20,}"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/\-]{8,}=*"
)
_FIELDS: Final = re.compile(
    r'(\\?"(?:api[-_]?key|authorization|access_token|refresh_token|password|secret)\\?"\s*:\s*\\?")'
    r'[^"\\]+',
    re.IGNORECASE,
)
_CHANGING: Final = (
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\b[a-z]+_[0-9a-hjkmnp-tv-z]{26}\b"), "<id>"),
    (
        re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"),
        "<time>",
    ),
)


class Redactor:
    """Replaces given secrets, and texts that look like keys, by `REDACTED`.

    Args:
        secrets: Values that must not be stored.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({each for each in secrets if len(each) >= SHORTEST}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def redact(self, text: str) -> str:
        """Return the text without secrets."""
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        return _FIELDS.sub(rf"\g<1>{REDACTED}", _KEYS.sub(REDACTED, text))

    def pieces(self, pieces: list[str]) -> list[str]:
        """Return the pieces without secrets; as one piece if one spans several of them."""
        whole = "".join(pieces)
        if self.redact(whole) == whole:
            return pieces
        each = [self.redact(piece) for piece in pieces]
        joined = "".join(each)
        return each if self.redact(joined) == joined == self.redact(whole) else [self.redact(whole)]


def steady(text: str, also: Iterable[tuple[re.Pattern[str], str]] = ()) -> str:
    """Return the text with ids, dates and other values of one run replaced by their kind."""
    for pattern, name in (*also, *_CHANGING):
        text = pattern.sub(name, text)
    return text
