"""Sums of what agents have used, from rows for each hour of a session (`AddUsage`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oubliette.records import Used
from oubliette.runtime.store.queries.instance import principal
from oubliette.runtime.store.queries.project_parts import project
from oubliette.runtime.store.queries.session_turns import session, session_title

if TYPE_CHECKING:
    from oubliette.contract.overview import UsageBy
    from oubliette.runtime.store.connection import StoreConnection

_KEYS: Final[dict[UsageBy, str]] = {
    "session": "session_id",
    "project": "project_id",
    "model": "model",
    "agent": "agent",
    "principal": "CASE WHEN principal = :only OR :only IS NULL THEN principal ELSE '' END",
    "day": "hour / 24",
}
_SUMS: Final = (
    "sum(input_tokens), sum(output_tokens), sum(measured_usd), sum(reported_usd), sum(turns)"
)
_ALL: Final = "FROM usage"
_SINCE: Final = "FROM usage INDEXED BY usage_by_hour WHERE hour >= :since"
_OF_PROJECT: Final = (
    "FROM usage INDEXED BY usage_by_project WHERE project_id = :project AND hour >= :since"
)
_MOST_FIRST: Final = (
    "coalesce(sum(measured_usd), 0) + coalesce(sum(reported_usd), 0) DESC,"
    " coalesce(sum(input_tokens), 0) + coalesce(sum(output_tokens), 0) DESC, 1"
)


class UsageSum(NamedTuple):
    """Usage of one session, one project or another thing that it is summed by."""

    key: str
    """Empty: unknown, or not to be known."""
    name: str | None
    used: Used


class UsageSums(NamedTuple):
    """Sums, the largest or the newest first."""

    sums: list[UsageSum]
    total: Used
    """Of all, also of those that are left out."""
    more: bool
    """Whether some are left out."""


def usage_sums(
    connection: StoreConnection,
    by: UsageBy,
    since: int = 0,
    project_id: str | None = None,
    *,
    only: str | None = None,
    limit: int = 100,
) -> UsageSums:
    """Return what was used since an hour, in hours since 1970.

    By principal, with `only`, those of other principals are one sum with an empty key.
    """
    wanted = _OF_PROJECT if project_id is not None else _SINCE if since > 0 else _ALL
    given = {"since": since, "project": project_id, "only": only, "most": limit + 1}
    order = "1 DESC" if by == "day" else _MOST_FIRST
    rows = connection.execute(
        f"SELECT {_KEYS[by]}, {_SUMS} {wanted} GROUP BY 1 ORDER BY {order} LIMIT :most",
        given,
    ).fetchall()
    (total,) = connection.execute(f"SELECT {_SUMS} {wanted}", given).fetchall()
    return UsageSums(
        [_named(connection, by, key, _used(*sums)) for key, *sums in rows[:limit]],
        _used(*total),
        len(rows) > limit,
    )


def _named(connection: StoreConnection, by: UsageBy, key: Any, used: Used) -> UsageSum:
    if by == "day":
        return UsageSum(time.strftime("%Y-%m-%d", time.gmtime(key * 86400)), None, used)
    name = None
    if key and by == "session":
        known = session(connection, key)
        name = None if known is None else session_title(connection, known)
    elif key and by == "project":
        record = project(connection, key)
        name = None if record is None else record.name
    elif key and by == "principal":
        owner = principal(connection, key)
        name = None if owner is None else owner.name
    return UsageSum(key, name, used)


def _used(
    read: float | None,
    written: float | None,
    measured: float | None,
    reported: float | None,
    turns: int | None,
) -> Used:
    return Used(
        input_tokens=None if read is None else int(read),
        output_tokens=None if written is None else int(written),
        measured_usd=measured,
        reported_usd=reported,
        turns=int(turns or 0),
    )
