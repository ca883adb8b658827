"""Attempts to open a control link, on plain numbers and seconds."""

from __future__ import annotations

from oubliette.actors.relay.link_attempts import GONE_SECONDS, LinkAttempts


def absent_at(attempts: LinkAttempts, now: float) -> bool:
    """Let an attempt find no process; whether the guest is to be reported."""
    attempts.begin()
    return attempts.failed(now, absent=True, unusable=False)


def test_only_the_latest_attempt_counts() -> None:
    attempts = LinkAttempts()
    first, second = attempts.begin(), attempts.begin()
    assert not attempts.is_latest(first)
    assert attempts.is_latest(second)


def test_it_connects_from_the_beginning_of_an_attempt_to_its_end() -> None:
    attempts = LinkAttempts()
    assert not attempts.connecting
    attempts.begin()
    assert attempts.connecting
    attempts.opened()
    assert not attempts.connecting
    attempts.begin()
    attempts.failed(0.0, absent=False, unusable=False)
    assert not attempts.connecting


def test_a_guest_is_gone_once_no_process_has_listened_for_a_while() -> None:
    attempts = LinkAttempts()
    assert not absent_at(attempts, 10.0)
    assert not absent_at(attempts, 10.0 + GONE_SECONDS - 0.1)
    assert absent_at(attempts, 10.0 + GONE_SECONDS)
    assert not absent_at(attempts, 10.0 + GONE_SECONDS + 0.1), "the time begins anew"


def test_a_process_that_listens_in_between_begins_the_time_anew() -> None:
    attempts = LinkAttempts()
    absent_at(attempts, 10.0)
    attempts.begin()
    assert not attempts.failed(11.0, absent=False, unusable=False)
    assert not absent_at(attempts, 10.0 + GONE_SECONDS)


def test_a_link_or_another_container_begins_the_time_anew() -> None:
    for begin_anew in (LinkAttempts.opened, LinkAttempts.container_changed):
        attempts = LinkAttempts()
        absent_at(attempts, 10.0)
        begin_anew(attempts)
        assert not absent_at(attempts, 10.0 + GONE_SECONDS)


def test_a_process_that_is_not_our_guest_is_reported_at_once() -> None:
    attempts = LinkAttempts()
    attempts.begin()
    assert attempts.failed(10.0, absent=False, unusable=True)


def test_delays_grow_until_a_link_opens_or_the_container_changes() -> None:
    for begin_anew in (LinkAttempts.opened, LinkAttempts.container_changed):
        attempts = LinkAttempts()
        delays = [attempts.next_delay() for _ in range(12)]
        assert delays[0] < 0.05
        assert delays[-1] == 2.0
        begin_anew(attempts)
        assert attempts.next_delay() < 0.05
