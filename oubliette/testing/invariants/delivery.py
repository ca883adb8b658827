"""Invariants of the relay: events that a listener got are those of the logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oubliette.testing.invariants.broken import InvariantBroken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SAME: Final = "a listener gets the events of the log as they are"
ONCE: Final = "a listener gets each event once, in the order of their seqs"
AGAIN: Final = "only requests are redelivered"
COMPLETE: Final = "a listener gets every event after its cursor, but for settled requests"
REQUEST: Final = "caller_tool_request"


def check_delivery(
    received: Iterable[Mapping[str, Any]], logs: Mapping[str, Iterable[Mapping[str, Any]]]
) -> None:
    """Check that the listener of a caller missed nothing, and got nothing twice unless marked.

    Args:
        received: Events of logs, in the order in which they arrived, over all connections.
        logs: Session id → the whole log, for all sessions of the caller.

    Raises:
        InvariantBroken: an event was lost, changed, repeated or out of order.
    """
    kept = {(sid, event["index"]): event for sid, events in logs.items() for event in events}
    all_received: set[int] = set()
    once: list[int] = []
    for event in received:
        plain = {key: value for key, value in event.items() if key != "redelivered"}
        found = kept.get((event["session_id"], event["index"]))
        if found != plain:
            raise InvariantBroken(SAME, f"the log has {found}", event)
        all_received.add(event["seq"])
        if event.get("redelivered"):
            if event["type"] != REQUEST:
                raise InvariantBroken(AGAIN, f"a {event['type']} is redelivered", event)
        elif once and event["seq"] <= once[-1]:
            raise InvariantBroken(ONCE, f"seq {event['seq']} after {once[-1]}", event)
        else:
            once.append(event["seq"])
    if not once:
        return
    settled = {
        event["request_id"] for event in kept.values() if event["type"] == "caller_tool_settled"
    }
    for event in sorted(kept.values(), key=lambda each: each["seq"]):
        if event["seq"] < once[0] or event["seq"] in all_received:
            continue
        if event["type"] != REQUEST or event["request_id"] not in settled:
            raise InvariantBroken(COMPLETE, f"seq {event['seq']} never arrived", event)
