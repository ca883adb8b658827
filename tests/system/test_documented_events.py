"""What a session says has the fields that the page of events lists, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")
HEAD = {"type", "session_id", "index", "ts", "seq", "version", "redelivered", "turn"}


def fields_of_types() -> dict[str, set[str]]:
    parts = re.findall(r"^### `(\w+)`\n(.*?)(?=^##)", PAGE, re.M | re.S)
    return {name: named(part) for name, part in parts}


def named(part: str) -> set[str]:
    rows = re.findall(r"^\| (`[^|]*) \|", part, re.M)
    return {field for row in rows for field in re.findall(r"`(\w+)`", row)}


def fields_of_kinds() -> dict[str, set[str]]:
    kinds = PAGE.partition("## Kinds of `system`")[2]
    rows = re.findall(r"^\| `([\w.]+)` \| ([^|]*)\|", kinds, re.M)
    return {kind: set(re.findall(r"`(\w+)`", fields)) for kind, fields in rows}


async def test_every_field_of_an_event_is_described(site):
    types, kinds = fields_of_types(), fields_of_kinds()
    kinds["permission"] |= types["permission_request"]
    lines = (
        "say hello\ncall myapp_add {}\nusage 0.5 10\nask may I?\nask may I?\n"
        'call session_map {"messages": ["say a"]}\nfail on purpose'
    )
    async with site.caller("http-auto", tools={"add": lambda: 1}) as caller:
        await caller.listen()
        agent = await site.spawn(caller, lines)
        asked = await caller.event("permission_request")
        await caller.call(
            "permission_response",
            session_id=agent.session_id,
            request_id=asked["request_id"],
            decision="allow",
            remember="session",
        )
        await agent.event("completion", status="failed")
        await agent.say("crash 3")
        await agent.event("status", status="failed")
    seen: set[str] = set()
    for event in agent.log:
        kind = event.get("kind") if event["type"] == "system" else None
        described = types[event["type"]] if kind is None else kinds[kind] | {"kind"}
        assert set(event) - HEAD <= described, event
        seen.add(kind or event["type"])
    assert seen >= {
        *("status", "message", "tool_call", "tool_result", "completion", "error"),
        *("caller_tool_request", "caller_tool_settled", "permission_request", "permission_settled"),
        *("session_map", "stage", "ready", "turn_started", "usage", "permission"),
    }
