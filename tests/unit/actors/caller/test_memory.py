"""Which open requests are lost while their caller is absent, and when the next one is."""

from __future__ import annotations

from oubliette.actors.caller.memory import CallerMemory, TrackedRequest


def memory(**requests: TrackedRequest) -> CallerMemory:
    return CallerMemory(tracked=requests)


def request(not_before: float, *, durable: bool = False) -> TrackedRequest:
    return TrackedRequest("request", durable, not_before)


def test_a_request_is_lost_once_its_caller_was_waited_for() -> None:
    kept = memory(early=request(5.0), late=request(7.0))
    assert list(kept.lost(4.9)) == []
    assert list(kept.lost(5.0)) == ["early"]
    assert list(kept.lost(9.0)) == ["early", "late"]


def test_a_durable_request_is_never_lost() -> None:
    kept = memory(durable=request(5.0, durable=True))
    assert kept.lost(100.0) == {}
    assert kept.next_loss(50.0) is None


def test_the_next_loss_waits_for_the_absence_and_for_the_first_request() -> None:
    kept = memory(early=request(5.0), late=request(7.0), durable=request(1.0, durable=True))
    assert kept.next_loss(3.0) == 5.0
    assert kept.next_loss(6.0) == 6.0


def test_without_a_request_there_is_no_loss() -> None:
    assert memory().next_loss(3.0) is None
