"""Progress of a call is passed on at most once a second, and its newest message is not lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oubliette.actors.agent_requests.call_progress import MIN_SECONDS, CallProgress


def test_the_first_message_is_passed_on_at_once() -> None:
    assert CallProgress().wait("a", 5.0) == 0


def test_messages_within_the_second_replace_each_other() -> None:
    progress = CallProgress()
    progress.wait("a", 5.0)
    assert progress.wait("b", 5.25) == 0.75
    assert progress.wait("c", 5.5) is None
    assert progress.due(6.0) == "c"
    assert progress.due(6.0) is None


def test_a_clock_that_was_set_back_delays_nothing() -> None:
    progress = CallProgress()
    progress.wait("a", 5000.0)
    assert progress.wait("b", 1.0) == 0


@given(st.lists(st.floats(0, 3, allow_nan=False), max_size=40))
def test_messages_are_a_second_apart_and_end_with_the_last_one(pauses: list[float]) -> None:
    progress, now, timer = CallProgress(), 0.0, None
    passed: list[tuple[float, str]] = []

    def fire(at: float) -> None:
        held = progress.due(at)
        assert held is not None
        passed.append((at, held))

    for number, pause in enumerate(pauses):
        now += pause
        if timer is not None and timer <= now:
            fire(timer)
            timer = None
        wait = progress.wait(str(number), now)
        if wait == 0:
            passed.append((now, str(number)))
        elif wait is not None:
            assert timer is None
            timer = now + wait
    if timer is not None:
        fire(timer)
    times = [at for at, _ in passed]
    assert all(b - a > MIN_SECONDS - 1e-9 for a, b in zip(times, times[1:], strict=False))
    assert [text for _, text in passed][-1:] == [str(len(pauses) - 1)][: len(pauses)]
