"""Requests that are settled before their session has a policy are forgotten."""

from __future__ import annotations

from typing import Any, cast

import pytest

from oubliette.api.callers.caller_loop import CallerLoop, Provided
from oubliette.api.events.decoding import decode_event
from oubliette.api.permissions import rules
from oubliette.api.shared import ClientShared

pytestmark = pytest.mark.anyio

COMMON = {"session_id": "gogol_1", "index": 1, "ts": 1.0, "seq": 1, "turn": 1, "version": 1}
REQUEST = {"type": "permission_request", "request_id": "r", "text": "may I?", "asks_for": "x"}
SETTLED = {"type": "permission_settled", "request_id": "r", "decision": "deny"}


async def test_a_permission_that_is_settled_is_not_decided_later():
    shared = ClientShared(cast("Any", None))
    loop = CallerLoop(shared, "program")
    loop._take(decode_event({**COMMON, **REQUEST}))
    assert loop._unclaimed
    loop._take(decode_event({**COMMON, **SETTLED}))
    assert not loop._unclaimed
    loop.provide("gogol_1", Provided({}, rules(allow=["*"])))
    assert not loop._running
