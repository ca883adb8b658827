"""What a remembered decision covers: no more than what was shown when it was made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oubliette.actors.session.permissions import MAX_KIND
from oubliette.runtime.agents import AcpAdapter
from oubliette.runtime.agents.handshake_adapter import Opening


def asked(call: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    """`asks_for` of a question about this call, as an agent would put it."""
    adapter = AcpAdapter(Opening(cwd="/w", autonomy="ask"), {"ready": True})
    call = {"toolCallId": "c1", "title": "Terminal", "kind": "execute", **call}
    said = b""
    if before is not None:
        update = {"sessionUpdate": "tool_call", "toolCallId": call["toolCallId"], **before}
        params = {"sessionId": "s", "update": update}
        said = json.dumps({"method": "session/update", "params": params}).encode() + b"\n"
    params = {"sessionId": "s", "toolCall": call, "options": []}
    request = {"id": 1, "method": "session/request_permission", "params": params}
    events = adapter.feed(said + json.dumps(request).encode() + b"\n", 0)
    (event,) = [event for event in events if event.type == "permission_request"]
    asks_for = event.data["asks_for"]
    assert len(asks_for) <= MAX_KIND
    assert asks_for.isprintable()
    return asks_for


def test_a_command_is_remembered_and_no_other_command() -> None:
    status = asked({"rawInput": {"command": "git status", "description": "Look"}})
    assert status == 'Terminal: execute: {"command":"git status"}'
    assert status == asked({"rawInput": {"description": "Look again", "command": "git status"}})
    assert status != asked({"rawInput": {"command": "git push"}})
    assert status != asked({"rawInput": {"command": "git status", "cwd": "/etc"}})
    assert status != asked({"rawInput": {"command": "git  status"}})
    assert status != asked({"rawInput": {"command": "git\nstatus"}})
    assert status != asked({"title": "Edit", "rawInput": {"command": "git status"}})
    assert status != asked({"kind": "edit", "rawInput": {"command": "git status"}})


def test_a_description_that_is_no_comment_counts() -> None:
    one = asked({"title": "create_issue", "rawInput": {"title": "a", "description": "b"}})
    assert one != asked({"title": "create_issue", "rawInput": {"title": "a", "description": "c"}})


def test_long_arguments_are_told_apart_to_their_end() -> None:
    text = "x" * 10_000
    assert asked({"rawInput": {"command": text}}) != asked({"rawInput": {"command": text + "y"}})
    assert asked({"rawInput": {"command": text}}) == asked({"rawInput": {"command": text}})


def test_what_was_told_of_the_call_before_counts_where_the_question_says_nothing() -> None:
    before = {"title": "Terminal", "status": "pending", "rawInput": {"command": "ls"}}
    assert asked({}, before) == 'Terminal: execute: {"command":"ls"}'


def test_places_count_where_there_are_no_arguments() -> None:
    here = asked({"kind": "edit", "locations": [{"path": "/w/a"}]})
    assert here == 'Terminal: edit: [{"path":"/w/a"}]'
    assert here != asked({"kind": "edit", "locations": [{"path": "/w/b"}]})


def test_a_title_alone_is_never_the_same_again() -> None:
    """`Terminal: execute`, remembered, would have allowed every command."""
    one = asked({"toolCallId": "c1"})
    assert one == "Terminal: execute, this call alone (c1)"
    assert one != asked({"toolCallId": "c2"})
    assert one != asked({"toolCallId": "c2", "rawInput": {}, "locations": [], "content": None})


@pytest.mark.parametrize(
    "call",
    [
        {"title": 5, "kind": {"a": 1}, "toolCallId": ["x"]},
        {"title": "\x1b[31mred\n" * 50, "kind": "\x00" * 200, "rawInput": {"a\x07": "\u202e"}},
        {"rawInput": [1, 2], "locations": "x", "content": 7},
        {"rawInput": {"command": {"command": [None] * 500}}},
    ],
)
def test_nonsense_is_a_line_of_text_all_the_same(call: dict[str, Any]) -> None:
    assert asked(call)
