"""Effects of one item of an agent's output, without I/O.

The watchdog has noted the item before (`AgentWatchdog.heard`), except for items of type `system`,
which are in the log first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

from oubliette.actors.session.effects import (
    AppendEvent,
    AskPermission,
    BeginTurn,
    ChangeRecord,
    Effects,
    HearSystem,
    NotifyTree,
)
from oubliette.actors.session.messages import AgentCost
from oubliette.records import Forks, TurnOutcome

if TYPE_CHECKING:
    from oubliette.actors.session.messages import OutputEvent
    from oubliette.actors.session.state import SessionActorState
    from oubliette.records import Session

_FORKS: Final = get_args(Forks)
_OUTCOMES: Final[dict[str, TurnOutcome]] = {each: each for each in get_args(TurnOutcome)}


def effects_of(
    item: OutputEvent,
    source: str,
    state: SessionActorState,
    record: Session,
    given_up: str | None,
) -> Effects:
    """Return the effects of an item that has not been taken in before.

    Args:
        item: The item.
        source: Its position in the output, by which the store recognises it.
        state: Of the session.
        record: Of the session.
        given_up: Reason for which the running turn is to fail, if it was interrupted for one.
    """
    data = item.data
    match item.type:
        case "completion":
            return _completion(data, source, state, record, given_up)
        case "usage":
            return (*usage(record, data), _system("usage", data, source))
        case "ready":
            changed = _known_of(data)
            shown = _system("ready", data, source)
            return (ChangeRecord(changed), shown) if changed else (shown,)
        case "turn_started":
            return (_system("turn_started", data, source),)
        case "permission_request":
            return (AskPermission(data, source),)
        case "message":
            return (AppendEvent("message", {**data, "role": "assistant"}, source),)
        case "error":
            state.last_error = str(data.get("message") or "") or None
            return (AppendEvent("error", data, source),)
        case "system":
            # Readers get a `type` of their own: that of the event.
            kind = data.get("kind", data.get("type"))
            shown = data if kind is None else {**data, "kind": kind}
            return (AppendEvent("system", shown, source), HearSystem(data))
        case _:
            return (AppendEvent(item.type, data, source),)


def _known_of(ready: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the record about the conversation of an agent that is ready."""
    named, forks = ready.get("agent_session_id"), ready.get("forks")
    known: dict[str, Any] = {}
    if isinstance(named, str):
        known = {"agent_session_id": named, "agent_forks": forks if forks in _FORKS else None}
    if ready.get("forked") is False:
        known["conversation"] = "transcript"  # it gets the record after all
    return known


def _completion(
    data: dict[str, Any],
    source: str,
    state: SessionActorState,
    record: Session,
    given_up: str | None,
) -> Effects:
    # An adapter of another package may report what no reader of the log knows.
    outcome = _OUTCOMES.get(str(data.get("status", "completed")), "failed")
    final = data.get("final_text")
    text = final if isinstance(final, str) else None
    if outcome == "interrupted" and given_up is not None:
        outcome, text, state.last_error = "failed", given_up, given_up
    return (*state.complete(outcome, text, source, record.status), BeginTurn())


def _system(kind: str, data: dict[str, Any], source: str) -> AppendEvent:
    return AppendEvent("system", {"kind": kind, **data}, source)


def usage(record: Session, data: dict[str, Any]) -> Effects:
    """Add what the agent reports to have used; the tree gets the sum of the costs.

    Args:
        record: Of the session.
        data: `cost_usd`, `input_tokens` (or `tokens`) and `output_tokens`, all optional.
    """
    cost = record.cost_usd + float(data.get("cost_usd") or 0.0)
    used = int(data.get("input_tokens") or data.get("tokens") or 0)
    written = int(data.get("output_tokens") or 0)
    return (
        ChangeRecord(
            {
                "cost_usd": cost,
                "input_tokens": record.input_tokens + used,
                "output_tokens": record.output_tokens + written,
            }
        ),
        NotifyTree(AgentCost(session_id=record.id, cost_usd=cost)),
    )
