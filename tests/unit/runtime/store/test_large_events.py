"""Of a large event as much is read as is asked for."""

from __future__ import annotations

import json

import msgspec

from oubliette.runtime.store import queries
from oubliette.runtime.store.operations import AppendEvents, PutSession
from oubliette.tools.event_queries import event_piece, tree_log
from tests.unit.runtime.store import samples


def test_a_large_event_comes_as_a_reference_or_in_pieces(store):
    text = "é%" * 100_000
    event = msgspec.structs.replace(samples.event(0), data={"text": text})
    store.write(PutSession(samples.session()), AppendEvents((event,)))
    whole, offset = "", 0
    while offset is not None:
        piece, offset, _ = store.read(event_piece, "s1", 0, offset, 100_001)
        whole += piece
    assert json.loads(whole)["text"] == text
    page = store.read(queries.log, "s1", whole_bytes=1000)
    assert page.events[0].data["ref"] == {"session_id": "s1", "index": 0}
    tree = store.read(tree_log, "s1", 0, 10, 1000, whole_bytes=1000)
    assert tree.events[0].data["ref"] == {"session_id": "s1", "index": 0}
