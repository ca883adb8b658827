"""`session_events` of an agent: a page of the log of a session in its tree.

An agent gets each event whole, because it has no tool that reads the rest of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oubliette.actors.event_pages import error_of, long_poll, read_page
from oubliette.errors import NotFound
from oubliette.records import Event

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.event_pages import EventPage
    from oubliette.contract.session_tools import EventsParams
    from oubliette.records import Session, Turn


def first_form(page: dict[str, Any], turn: Turn | None) -> dict[str, Any]:
    """Change a page for bare clients, which take its first `message` or `error` for the outcome.

    The only such event is the outcome of the last turn, at the end.

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


MAX_PAGE: Final = 4 * 1024 * 1024
"""Maximum bytes of the events of one answer."""


async def session_events(
    context: ActorContext, asker: Session, params: EventsParams, *, bare: bool
) -> dict[str, Any]:
    """Return the answer to the agent of the session `asker`; `bare` is the first form.

    Raises:
        NotFound: there is no such session in its project under its root.
    """
    record = await context.reader.session(params.session_id)
    if record is None or (record.project_id, record.exploration_id, record.root_session_id) != (
        asker.project_id,
        asker.exploration_id,
        asker.root_session_id,
    ):
        raise NotFound(f"session_id: there is no session {params.session_id} in this tree")

    async def read(wait: float) -> EventPage:
        ask = context.session_registry.ask
        return await read_page(context.reader, ask, params, max_bytes=MAX_PAGE, wait=wait)

    slices = context.config.callers.poll_grace_seconds / 2
    page = await long_poll(context.clock, params.wait_seconds, slices, read)
    answer = await _answer(context, page)
    if not bare:
        return answer
    session = page.session
    turn = None
    if page.turn_over:
        turn = await context.reader.turn(session.id, session.turn_count)
    # Such a client reads from the start each time: the outcome is not left to the last page.
    return first_form({**answer, "completed": page.turn_over}, turn)


async def _answer(context: ActorContext, page: EventPage) -> dict[str, Any]:
    session = page.session
    return {
        "session_id": session.id,
        "status": session.status,
        "last_index": page.last_index,
        "events": [
            {**event.data, "type": event.type, "index": event.index, "ts": event.ts}
            for event in map(Event.unnamed, page.events)
        ],
        "completed": page.completed,
        "failed": page.failed,
        "error": await error_of(context.reader, page),
        "final_response": session.final_response if page.turn_over else None,
        "truncated_before": page.truncated_before,
        "more": page.more,
    }
