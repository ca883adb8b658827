"""Deadlines of the client's calls, on a loop without time."""

from __future__ import annotations

from typing import Any

import pytest

from oubliette.incontainer.client import calls
from oubliette.incontainer.client.calls import CallFailed, PendingCall, PendingCalls


class Loop:
    """One timer, and a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due = float("inf")
        self.call: Any = None

    def monotonic(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Any) -> Loop:
        self.due, self.call = self.now + seconds, call
        return self

    def cancel(self) -> None:
        self.due = float("inf")

    def elapse(self, seconds: float) -> None:
        end = self.now + seconds
        while self.due <= end:
            self.now, self.due = self.due, float("inf")
            self.call()
        self.now = end


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    loop = Loop()
    monkeypatch.setattr(calls, "time", loop)
    return loop


def begun(loop: Loop, *, seconds: float) -> tuple[PendingCalls, list[CallFailed | None], int]:
    """Calls of a client that is connected, with one of them, and its outcomes."""
    outcomes: list[CallFailed | None] = []
    pending = PendingCalls(loop, lambda _: None)  # pyright: ignore[reportArgumentType] - as much of one
    pending.linked()
    call = PendingCall(
        "caller_tool", {}, done=lambda _, failed: outcomes.append(failed), outage_seconds=60.0
    )
    number = pending.add(call, seconds)
    assert number is not None
    return pending, outcomes, number


def test_a_call_without_an_answer_ends_at_its_deadline(loop: Loop) -> None:
    _, outcomes, _ = begun(loop, seconds=27.0)
    loop.elapse(26.9)
    assert outcomes == []
    loop.elapse(1.0)
    (failed,) = outcomes
    assert failed is not None
    assert (failed.message, failed.kind) == ("no answer within 27 s", "timeout")


def test_news_of_the_server_begin_the_deadline_anew(loop: Loop) -> None:
    pending, outcomes, number = begun(loop, seconds=27.0)
    for _ in range(5):
        loop.elapse(20.0)
        pending.news(number, "wait")
    loop.elapse(26.0)
    assert outcomes == []
    loop.elapse(2.0)
    assert len(outcomes) == 1


def test_news_begin_no_deadline_where_the_server_is_lost(loop: Loop) -> None:
    pending, outcomes, number = begun(loop, seconds=27.0)
    pending.unlinked("gone")
    pending.news(number, "late")
    loop.elapse(59.0)
    assert outcomes == []
    loop.elapse(2.0)
    (failed,) = outcomes
    assert failed is not None
    assert failed.kind == "disconnected"
