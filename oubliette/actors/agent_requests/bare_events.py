"""`session_events` for clients without a secret, which know only the protocol's first form.

Such a client polls from the start until `completed` or `failed`, and takes the first `message` of
an assistant for the answer, or the first `error` for the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oubliette.records import Turn


def first_form(page: dict[str, Any], turn: Turn | None) -> dict[str, Any]:
    """Return `page` with the outcome of its last turn as its last event, and no other such event.

    Args:
        page: The answer to `session_events`.
        turn: The session's last turn, once it is over.
    """
    over = bool(page["completed"])
    completed = turn is not None and turn.outcome == "completed" if over else False
    kept = [each for each in page["events"] if each["type"] not in {"message", "error"}]
    if completed and turn is not None:
        text = turn.result or page["final_response"] or ""
        kept.append(_outcome(page, "message", role="assistant", text=text))
    elif over:
        reason = _reason(page, turn)
        kept.append(_outcome(page, "error", text=reason, message=reason))
    return {**page, "events": kept, "completed": completed, "failed": over and not completed}


def _reason(page: dict[str, Any], turn: Turn | None) -> str:
    errors = [each.get("message") for each in page["events"] if each["type"] == "error"]
    if errors and errors[-1]:
        return str(errors[-1])
    if turn is None:
        return "the turn failed"
    return turn.result or f"the turn {turn.outcome}"


def _outcome(page: dict[str, Any], kind: str, **fields: str) -> dict[str, Any]:
    return {"type": kind, "index": page["last_index"], **fields}
