"""Format of the log's events for callers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette import json_values
from oubliette.tools.schema.views import event_view

if TYPE_CHECKING:
    from oubliette.records import Event

TOOL_LOGGER: Final = "oubliette.caller_tool"
SESSION_LOGGER: Final = "oubliette.session"
MAX_STREAMED: Final = 900_000
"""Maximum bytes of an event on a stream; clients of the Python SDK fail at 1 MiB."""
MAX_POLLED: Final = 380_000
"""Maximum bytes of data requested for one result, which contains them twice."""
_REQUEST: Final = "caller_tool_request"

_UNENCODABLE: Final = (RecursionError, TypeError, ValueError)

_encode = msgspec.json.Encoder().encode


def encode(value: object) -> bytes:
    """Encode any JSON value without line breaks."""
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError, TypeError):
        # Half a surrogate pair or an integer beyond 64 bits: Python's own encoder takes both.
        return json.dumps(value, separators=(",", ":")).encode()


def as_data(event: Event, *, redelivered: bool = False) -> dict[str, Any]:
    """The event as a caller sees it, of any size."""
    if redelivered:
        return event_view(event, whole=True, redelivered=True)
    return event_view(event, whole=True)


def as_reference(event: Event) -> dict[str, Any]:
    """Return the substitute for an event that is too large; `event_read` reads it in pieces."""
    return as_data(event.by_reference(json_values.size(event.data)))


def frame(data: dict[str, Any], logger: str) -> bytes:
    """A log message notification as a server-sent event (MCP, server/utilities/logging)."""
    return b"event: message\r\ndata: %b\r\n\r\n" % encode(
        {
            "jsonrpc": "2.0",
            "method": "notifications/message",
            "params": {"level": "info", "logger": logger, "data": data},
        }
    )


def event_frame(event: Event, *, redelivered: bool = False, event_id: str | None = None) -> bytes:
    """Return an event of the log as one server-sent event; by reference if it is too large.

    A client that loses its stream returns the last `event_id`, where there are any.
    """
    if event_id is not None:
        return b"id: %b\r\n" % event_id.encode() + event_frame(event, redelivered=redelivered)
    logger = TOOL_LOGGER if event.type == _REQUEST else SESSION_LOGGER
    try:
        whole = frame(as_data(event, redelivered=redelivered), logger)
    except _UNENCODABLE:
        return frame(as_reference(event), logger)
    return whole if len(whole) <= MAX_STREAMED else frame(as_reference(event), logger)


def polled(
    events: tuple[Event, ...], redelivered: tuple[int, ...], cursor: int
) -> tuple[tuple[dict[str, Any], ...], int]:
    """Return the events that fit into a tool's result, at least one, and the cursor after them.

    A result contains them twice, as an object and as text in which their quotes are escaped again.
    """
    found: list[dict[str, Any]] = []
    room = MAX_STREAMED
    for event in events:
        data = as_data(event, redelivered=event.seq in redelivered)
        cost = _cost(data)
        if cost > MAX_STREAMED:
            data = as_reference(event)
            cost = _cost(data)
        room -= cost
        if found and room < 0:
            return tuple(found), found[-1]["seq"]
        found.append(data)
    return tuple(found), cursor


def _cost(data: dict[str, Any]) -> int:
    try:
        once = encode(data)
    except _UNENCODABLE:
        return MAX_STREAMED + 1
    return len(once) + len(encode(once.decode("ascii", "replace")))
