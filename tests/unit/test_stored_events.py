"""Events that an earlier release has stored and nobody could be sent: they make nobody deaf."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oubliette.actors.caller.event_window import RecentEvents, size_of
from oubliette.actors.session.event_writer import EventWriter
from oubliette.json_values import MAX_DEPTH
from oubliette.mcp_front.events import event_format
from oubliette.records import Event
from oubliette.runtime.store.queries.event_log import event_of
from oubliette.tools.schema.views import event_view
from tests.unit.runtime.store.samples import session
from tests.unit.test_json_values import BAD_SCALARS, nested, sendable


def stored(data: dict[str, Any], kind: str = "caller_tool_request") -> Event:
    text = json.dumps(data).encode()
    return event_of(("gogol_1", 3, 1.5, kind, text, 1, 7, "p", "c", None)).sendable()


@pytest.mark.parametrize("bad", [2**64, nested(1, 300), nested(1, 800)], ids=["int", "300", "800"])
def test_an_old_event_that_cannot_be_sent_enters_by_reference(bad: Any) -> None:
    event = stored({"request_id": "r", "tool": "t", "arguments": {"x": bad}})
    assert event.data.pop("size") > 20
    assert event.data == {
        "ref": {"session_id": "gogol_1", "index": 3},
        "request_id": "r",
        "tool": "t",
    }
    sendable(event_view(event))


def test_what_a_reference_keeps_can_be_sent_itself() -> None:
    event = stored({"request_id": "r", "tool": 2**64}, "caller_tool_request")
    assert event.data["request_id"] == "r"
    sendable(event_view(event))


def test_other_events_are_read_as_they_were_stored() -> None:
    data = {"arguments": nested(2**64 - 1, MAX_DEPTH)}
    assert stored(data).data == data


@pytest.mark.parametrize(
    "bad", [*BAD_SCALARS, nested(1, 5000), {1}, {"x": 10**5000}], ids=range(11)
)
def test_a_size_is_computed_of_anything(bad: Any) -> None:
    event = Event(session_id="s", index=0, ts=1.0, type="message", data={"x": bad}, seq=1)
    assert size_of(event) > 0
    window = RecentEvents(0)
    window.extend([event])
    assert window.head == 1
    writer = EventWriter(session(), [event], 0, ring_size=9, now=lambda: 1.0, wake=lambda: None)
    writer.append("message", {"x": bad, "y": {"z": bad}})


@pytest.mark.parametrize("bad", [nested(1, 5000), 10**5000], ids=["deep", "long"])
def test_an_event_that_cannot_be_encoded_is_delivered_by_reference(bad: Any) -> None:
    data = {"request_id": "r", "arguments": bad}
    event = Event(session_id="s", index=3, ts=1.0, type="caller_tool_request", data=data, seq=7)
    after = Event(session_id="s", index=4, ts=1.0, type="message", data={"text": "b"}, seq=8)
    frame = event_format.event_frame(event)
    told = json.loads(frame.split(b"data: ", 1)[1])["params"]["data"]
    assert (told["ref"], told["request_id"]) == ({"session_id": "s", "index": 3}, "r")
    (first, second), cursor = event_format.polled((event, after), (), 9)
    assert (first["ref"], second["text"], cursor) == (told["ref"], "b", 9)
    assert event_view(event)["ref"] == told["ref"]
