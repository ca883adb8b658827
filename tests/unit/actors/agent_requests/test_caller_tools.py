"""Open calls of a session: found by request, by call id, by who asked."""

from __future__ import annotations

from oubliette.actors.agent_requests.caller_tools import (
    KEEP_SETTLED,
    CallerToolCalls,
    OpenCall,
    PendingRpc,
    find_tool,
)
from oubliette.records import CallerRequest, CallerTool, Session


def call(number: int, call_id: str | None = None) -> OpenCall:
    request = CallerRequest(
        id=f"request-{number}", session_id="gogol_x", principal="p", caller_id="shop", tool="t",
        arguments={}, created_at=0.0, deadline=60.0, event_index=0, call_id=call_id,
    )  # fmt: skip
    return OpenCall(request, [PendingRpc("link", 1, number)], state="open")


def test_a_call_is_found_again_by_its_id_while_open_and_for_ten_minutes_after() -> None:
    calls = CallerToolCalls()
    calls.add(call(1, "a"))
    assert calls.request_of("a") == "request-1"
    assert calls.take("request-1", "timeout", now=100.0) is not None
    assert calls.request_of("a") == "request-1"
    calls.add(call(2, "b"))
    calls.take("request-2", "timeout", now=100.0 + KEEP_SETTLED)
    assert calls.request_of("a") is None
    assert calls.request_of("b") == "request-2"


def test_a_call_is_settled_once() -> None:
    calls = CallerToolCalls()
    calls.add(call(1))
    assert calls.take("request-1", "timeout", 1.0) is not None
    assert calls.take("request-1", "cancelled", 2.0) is None


def test_an_open_call_is_not_forgotten_however_many_are_settled_after_it() -> None:
    calls = CallerToolCalls()
    calls.add(call(1, "open"))
    for number in range(2, 50):
        calls.add(call(number, f"c{number}"))
        calls.take(f"request-{number}", "timeout", now=number * KEEP_SETTLED)
    assert calls.request_of("open") == "request-1"


def test_a_cancellation_finds_the_call_of_the_request_it_names_only() -> None:
    calls = CallerToolCalls()
    calls.add(call(1))
    assert calls.asked_by(PendingRpc("link", 1, 1)) is calls["request-1"]
    assert calls.asked_by(PendingRpc("link", 2, 1)) is None
    assert calls.asked_by(PendingRpc("other", 1, 1)) is None


def test_a_lent_tool_is_known_with_and_without_its_callers_prefix() -> None:
    session = Session(
        id="gogol_x", project_id="proj_x", workspace_id="w", principal="p", agent="scripted",
        status="idle", created_at=0.0, updated_at=0.0, exploration_id="e", caller_id="shop",
        caller_tools=(CallerTool(name="add"),),
    )  # fmt: skip
    assert find_tool(session, "add") is find_tool(session, "shop_add")
    assert find_tool(session, "other_add") is None


def test_a_call_can_be_joined_until_its_outcome_is_in_the_log() -> None:
    calls = CallerToolCalls()
    calls.add(call(1, "a"))
    settled = calls.take("request-1", "timeout", 1.0)
    assert calls.find("request-1") is settled
    calls.take("request-1", "stored")
    assert calls.find("request-1") is None
    assert calls.request_of("a") == "request-1"
