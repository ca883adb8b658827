"""Sessions, as tools return them. Times are seconds since 1970-01-01 UTC."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from oubliette.contract.field_types import Result
from oubliette.contract.project import Problem


class Usage(Result, frozen=True, kw_only=True):
    """Usage of a model, as reported by the agent."""

    input_tokens: int
    output_tokens: int
    cost_usd: float


class SessionView(Result, frozen=True, kw_only=True):
    """A session."""

    session_id: str
    project_id: str
    workspace_id: str
    agent: str
    model: str | None
    autonomy: Annotated[
        str | None,
        Meta(
            description="Actions that its agent may take without a permission; null: none was"
            " given, and what it asks for depends on the agent."
        ),
    ]
    status: str
    """`created`, `running`, `idle`, `completed`, `failed` or `timed_out`."""
    status_reason: str | None
    isolation: str
    created_at: float
    """Seconds since 1970."""
    updated_at: float
    ended_at: float | None
    turn_count: int
    title: Annotated[str, Meta(description="As given, or the first line of the first prompt.")]
    last_prompt: str | None
    final_response: str | None
    last_index: Annotated[int, Meta(description="Index of its last event, -1 if none.")]
    parent_session_id: str | None
    child_session_ids: Annotated[
        tuple[str, ...], Meta(description="Oldest first; of more than 1000, the newest 1000.")
    ]
    exploration_id: str
    depth: int
    caller_id: str | None
    usage: Usage
    forked_from: Annotated[str | None, Meta(description="Session that it is a fork of.")] = None
    forked_at: Annotated[
        str | None, Meta(description="Snapshot of that session with whose files it began.")
    ] = None
    forked_at_turn: Annotated[
        int | None, Meta(description="Last turn of that session whose conversation it knows.")
    ] = None
    conversation: Annotated[
        str | None,
        Meta(
            description="Of a fork, native: its agent itself knows the conversation; transcript:"
            " it got a record of it before the first prompt."
        ),
    ] = None


class WaitInfo(Result, frozen=True, kw_only=True):
    """One thing that a session waits for."""

    kind: Annotated[
        str,
        Meta(
            description="message, model, tool, caller_tool, child, permission, place, container,"
            " agent, interrupt, end, storage, server or ended."
        ),
    ]
    what: Annotated[str, Meta(description="Completes the sentence: it waits for …")]
    since: float | None = None
    until: Annotated[
        float | None, Meta(description="Deadline of the wait; null: none, or unknown.")
    ] = None
    detail: str | None = None
    session_id: Annotated[str | None, Meta(description="Child that the session waits for.")] = None
    caller_id: Annotated[str | None, Meta(description="Caller that has to answer.")] = None
    caller_present: Annotated[
        bool | None, Meta(description="Whether that caller is connected.")
    ] = None
    last_event_at: Annotated[float | None, Meta(description="Time of the agent's last output.")] = (
        None
    )


class SessionRow(SessionView, frozen=True, kw_only=True):
    """A session in a listing."""

    waiting: Annotated[
        tuple[WaitInfo, ...],
        Meta(
            description="With waiting=true: what it waits for; empty if it has ended, or runs on"
            " another machine of a cluster."
        ),
    ] = ()


class PermissionInfo(Result, frozen=True, kw_only=True):
    """A permission request that waits for a decision."""

    request_id: str
    session_id: Annotated[str, Meta(description="The session that asks.")]
    project_id: str
    index: Annotated[int, Meta(description="Index of its event in the log of that session.")]
    asks_for: str
    text: str | None
    tool_call: Annotated[
        Any, Meta(description="As in the event; null: none, or so large that event_read has it.")
    ]
    created_at: float
    deadline: Annotated[float, Meta(description="It is denied then.")]
    ancestry: Annotated[
        tuple[str, ...],
        Meta(description="Sessions from the root down to the one that asks, as the key sees them."),
    ]
    may_answer: Annotated[bool, Meta(description="Whether this key may answer it.")]


class SessionDetail(SessionView, frozen=True, kw_only=True):
    """A session, and what it waits for."""

    waiting: Annotated[
        tuple[WaitInfo, ...],
        Meta(description="What the session waits for now; at least one entry."),
    ]
    problem: Problem = None


class SessionEventsPage(Result, frozen=True, kw_only=True):
    """Result of `session_events`."""

    session_id: str
    status: str
    last_index: Annotated[int, Meta(description="Value of since_index in the next call.")]
    events: tuple[dict[str, Any], ...]
    completed: Annotated[
        bool, Meta(description="The last turn has ended, and this answer has the end of the log.")
    ]
    failed: Annotated[bool, Meta(description="The session has failed.")]
    error: Annotated[str | None, Meta(description="Why the session or its last turn failed.")]
    final_response: Annotated[
        str | None, Meta(description="The last turn's answer, once completed.")
    ]
    truncated_before: Annotated[
        int | None, Meta(description="Older events were deleted; this is the first one kept.")
    ]
    more: Annotated[bool, Meta(description="There are more events already; call again.")]
