"""Results of the tools that sum up what many sessions do and use.

Times are seconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from oubliette.contract.field_types import Result
from oubliette.contract.session import WaitInfo


class LimitState(Result, frozen=True, kw_only=True):
    """One limit."""

    value: int | float
    source: Annotated[str, Meta(description="Source of the limit: tree, project or configuration.")]
    used: int | float | None
    left: int | float | None


class TreeRow(Result, frozen=True, kw_only=True):
    """A session of a tree."""

    session_id: str
    parent_session_id: str | None
    level: Annotated[int, Meta(description="Number of sessions above it that are shown.")]
    project_id: str
    agent: str
    model: str | None
    status: str
    title: str
    created_at: float
    updated_at: float
    cost_usd: float
    waiting: Annotated[
        tuple[WaitInfo, ...],
        Meta(
            description="What it waits for; empty if it has ended, or runs on another machine of a"
            " cluster."
        ),
    ]


class TreeState(Result, frozen=True, kw_only=True):
    """Result of `tree_get`."""

    exploration_id: Annotated[str, Meta(description="Id of the tree.")]
    sessions: Annotated[int, Meta(description="Sessions of the tree, those that have ended too.")]
    live: Annotated[int, Meta(description="Those that live.")]
    cost_usd: float
    limits: Annotated[dict[str, LimitState], Meta(description="As config_limits has them.")]
    rows: Annotated[
        tuple[TreeRow, ...], Meta(description="Children after their parent, oldest first.")
    ]
    next_cursor: str | None


class TreeWait(Result, frozen=True, kw_only=True):
    """One thing that a session of a tree waits for."""

    session_id: str
    kind: Annotated[str, Meta(description="As in session_get.")]
    what: Annotated[str, Meta(description="Completes the sentence: it waits for …")]
    until: Annotated[float | None, Meta(description="Deadline of the wait; null: none.")]


class TreeInfo(Result, frozen=True, kw_only=True):
    """A tree in which sessions live."""

    exploration_id: Annotated[str, Meta(description="Id of the tree.")]
    session_id: Annotated[
        str, Meta(description="Its root, or the uppermost session that the key reaches.")
    ]
    project_id: Annotated[str, Meta(description="Project of that session.")]
    agent: str
    title: str
    created_at: float
    sessions: Annotated[int, Meta(description="Sessions of the tree, those that have ended too.")]
    live: Annotated[int, Meta(description="Those that live, and that the key reaches.")]
    cost_usd: float
    max_cost_usd: Annotated[float | None, Meta(description="Limit of the cost; null: none.")]
    waiting: Annotated[
        tuple[TreeWait, ...],
        Meta(description="Waits of its live sessions, but for those for a message or a child."),
    ]
    newest: Annotated[
        str | None, Meta(description="Last line of its agents' newest message, or name of a tool.")
    ]
    newest_at: float | None


class TreePage(Result, frozen=True, kw_only=True):
    """Result of `tree_list`."""

    trees: tuple[TreeInfo, ...]
    more: Annotated[bool, Meta(description="There are older ones, which were left out.")]


UsageBy = Literal["session", "project", "model", "agent", "principal", "day"]


class UsageTotal(Result, frozen=True, kw_only=True):
    """Usage of agents. A sum has what is known of it; null: nothing is."""

    input_tokens: int | None
    output_tokens: int | None
    measured_cost_usd: Annotated[
        float | None, Meta(description="From the tokens and the configured prices.")
    ]
    reported_cost_usd: Annotated[
        float | None, Meta(description="As agents report it, by prices of their own.")
    ]
    turns: Annotated[int, Meta(description="Turns that have ended.")]


class UsageRow(UsageTotal, frozen=True, kw_only=True):
    """Usage of one session, project, model, agent, principal or day."""

    key: Annotated[
        str | None,
        Meta(
            description="An id, a name, or a day such as 2026-01-31 (UTC). null: sessions that were"
            " removed, a model that is not known, or the other principals together, which are not"
            " shown to agents and to keys that may only read."
        ),
    ]
    name: Annotated[
        str | None,
        Meta(description="Title of the session, or name of the project or the principal."),
    ]


class UsageReport(Result, frozen=True, kw_only=True):
    """Result of `usage_report`."""

    by: str
    since: Annotated[
        float | None, Meta(description="Begin of the first hour that counts; null: all do.")
    ]
    rows: Annotated[
        tuple[UsageRow, ...],
        Meta(description="The highest costs first, then the most tokens; days: the newest first."),
    ]
    more: Annotated[bool, Meta(description="Rows were left out; the total has them.")]
    total: UsageTotal
