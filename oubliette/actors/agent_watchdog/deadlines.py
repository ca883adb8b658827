"""Reasons to give up an agent: it is not ready, has not contacted us, or its model keeps failing.

Each function takes the record and the limit and returns the reason, or None. Times are in seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from oubliette.records import Session

MAX_UNREACHABLE: Final = 2
"""Tries that may fail because a model cannot be reached."""


def start_overdue(
    record: Session, process_id: str, limit: float, slow_start: str = ""
) -> str | None:
    """Return why a process that was to be ready by now is given up.

    Args:
        record: Of the session.
        process_id: The process that the deadline was set for; another one has its own.
        limit: `agents.start_timeout_seconds`.
        slow_start: What this kind of agent may need to start faster, if it is known.
    """
    if record.agent_ready or record.process_id != process_id:
        return None
    remedy = f"{slow_start}, or raise" if slow_start else "raise"
    return (
        f"{record.agent} was not ready {limit:g} seconds after its start"
        f" ({remedy} agents.start_timeout_seconds)"
    )


def contact_overdue(record: Session, process_id: str, limit: float) -> str | None:
    """Return why a process that was to start our MCP server by now is given up.

    The agent would work without our tools, which would remain unnoticed.

    Args:
        record: Of the session.
        process_id: The process that the deadline was set for; another one has its own.
        limit: `agents.contact_timeout_seconds`.
    """
    if record.agent_contacted or record.process_id != process_id:
        return None
    return (
        f"{record.agent} has not started Oubliette's MCP server within {limit:g}"
        " seconds, so it has none of its caller's tools; it has to start the MCP"
        " servers that it is given with its session (ACP: mcpServers of session/new)"
        " (or raise agents.contact_timeout_seconds)"
    )


def retry_shown(data: dict[str, Any]) -> str:
    """Return how often the model has failed by now, and why."""
    return f"it has failed {data.get('attempt')} times: {data.get('message') or 'no reason'}"


def too_many_retries(data: dict[str, Any], limit: int) -> str | None:
    """Return why a turn whose model has failed once more is given up; `limit` tries may fail.

    Fewer may, if it cannot be reached: pauses between tries double, and an address stays wrong.
    """
    attempt = data.get("attempt")
    unreachable = data.get("unreachable") is True
    if not isinstance(attempt, int) or attempt <= (
        min(limit, MAX_UNREACHABLE) if unreachable else limit
    ):
        return None
    if unreachable:
        return f"the model was not reached {attempt} times in a row: {data.get('message')}"
    return (
        f"the model failed {attempt} times in a row: {data.get('message') or 'no reason'}"
        " (agents.max_retries)"
    )
