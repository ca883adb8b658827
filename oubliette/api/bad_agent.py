"""Error for a function that cannot be an agent."""

from __future__ import annotations

from oubliette.errors import OublietteError


class BadAgent(OublietteError, ValueError):
    """A function cannot be an agent; the message names it, the hint has the remedy."""

    code = "bad_agent"
    exit_code = 2
