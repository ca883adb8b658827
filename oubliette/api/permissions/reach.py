"""Reach of permission rules: those that can never decide, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.api.permissions.globs import matches_name, matches_text
from oubliette.api.permissions.kinds import ON_PATHS, kind_of, names_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oubliette.api.permissions.patterns import Pattern


def why_unreachable(allow: Sequence[Pattern], deny: Sequence[Pattern]) -> Iterator[tuple[str, str]]:
    """Return the rules that can never decide, as `allow[0]: PATTERN`, each with the reason."""
    for place, pattern in enumerate(allow):
        covering = next((each for each in deny if _covers(each, pattern)), None)
        if covering is not None:
            yield f"allow[{place}]: {pattern}", f"deny {covering} comes first"
        elif (reason := _never_matches(pattern)) is not None:
            yield f"allow[{place}]: {pattern}", reason
    for name, patterns in (("allow", allow), ("deny", deny)):
        for place, pattern in enumerate(patterns):
            for other, each in enumerate(patterns):
                both_ways = _covers(pattern, each)
                if other != place and _covers(each, pattern) and (other < place or not both_ways):
                    yield f"{name}[{place}]: {pattern}", f"{name} {each} decides the same"
                    break


def _covers(wide: Pattern, narrow: Pattern) -> bool:
    """Return whether one pattern matches all that the other matches; in doubt it does not."""
    kind = kind_of(narrow.tool)
    names = names_of(kind, narrow.tool)
    if not any(matches_name(wide.tool, name) for name in names):
        return False
    if wide.subject is None or wide.subject == narrow.subject:
        return True
    if narrow.subject is None:
        return False
    if wide.subject.endswith("/**"):
        return narrow.subject.startswith(wide.subject[:-2]) and "*" not in wide.subject[:-2]
    return kind not in ON_PATHS and matches_text(wide.subject, narrow.subject)


def _never_matches(pattern: Pattern) -> str | None:
    if pattern.subject is None or kind_of(pattern.tool) not in ON_PATHS:
        return None
    if ".." in pattern.subject.split("/"):
        return "a path with .. is never allowed; write where it leads to"
    if "\\" in pattern.subject:
        return "paths have / between their parts"
    if pattern.subject.startswith("~"):
        return "a home directory is not known; write an absolute path"
    return None
