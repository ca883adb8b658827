"""The order in which the guest's loop runs what is ready and what is due."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from oubliette.incontainer.io import event_loop
from oubliette.incontainer.io.event_loop import READ, Loop


class Frozen:
    """An epoll whose first wait lasts until long after its timeout, and then says nothing."""

    def __init__(self, epoll: object, now: list[float]) -> None:
        self._epoll, self._now, self._woke = epoll, now, False

    def __getattr__(self, name: str) -> object:
        return getattr(self._epoll, name)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        if not self._woke:
            self._woke = True
            self._now[0] += timeout + 60
            return []
        assert timeout == 0, "what is overdue is not waited for"
        return self._epoll.poll(0)  # type: ignore[attr-defined]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    """A loop that is frozen in its first turn."""
    now = [100.0]
    monkeypatch.setattr(event_loop.time, "monotonic", lambda: now[0])
    loop = Loop()
    loop._epoll = Frozen(loop._epoll, now)  # type: ignore[assignment]
    yield loop
    loop.close()


def test_data_that_lay_there_is_seen_before_a_deadline_that_passed_in_a_freeze(loop: Loop) -> None:
    reading, writing = os.pipe()
    seen: list[object] = []
    deadline = loop.call_later(5, lambda: seen.append("deadline"))

    def readable(_mask: int) -> None:
        seen.append(os.read(reading, 10))
        deadline.cancel()

    loop.watch(reading, READ, readable)
    os.write(writing, b"header")
    for _ in range(2):
        loop.turn()
    loop.unwatch(reading)
    os.close(reading)
    os.close(writing)
    assert seen == [b"header"]


def test_deadlines_that_passed_in_a_freeze_run_in_order_when_nothing_came(loop: Loop) -> None:
    seen: list[int] = []
    for delay in (7, 5, 6):
        loop.call_later(delay, lambda delay=delay: seen.append(delay))  # type: ignore[misc]
    for _ in range(2):
        loop.turn()
    assert seen == [5, 6, 7]
