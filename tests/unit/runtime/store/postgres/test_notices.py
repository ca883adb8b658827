"""Notices of the database reach those who follow them, or these are told that some are missing."""

from __future__ import annotations

import contextlib
import queue
import time

import pytest

from oubliette.runtime.store.postgres.notices import Notices
from tests.unit.runtime.store.postgres.conftest import WAIT

pytestmark = pytest.mark.requires("postgres")

GAP = "gap"


class Heard:
    """What one follower was called with, in order."""

    def __init__(self) -> None:
        self._calls: queue.Queue[str] = queue.Queue()

    def follow(self, notices: Notices, channel: str) -> Heard:
        notices.follow(channel, self._calls.put, lambda: self._calls.put(GAP))
        return self

    def next(self) -> str:
        return self._calls.get(timeout=WAIT)

    def empty(self) -> bool:
        return self._calls.empty()


@contextlib.contextmanager
def started(url: str):
    notices = Notices(url, "test")
    notices.start()
    try:
        yield notices
    finally:
        notices.close()


def test_a_follower_is_first_told_to_read_everything_and_then_of_each_notice(url, connection):
    notices = Notices(url, "test")
    heard = Heard().follow(notices, "birds")
    other = Heard().follow(notices, "fish")
    notices.start()
    assert (heard.next(), other.next()) == (GAP, GAP)
    connection.execute("NOTIFY birds, 'crow'")
    connection.execute("NOTIFY birds, 'owl'")
    connection.execute("NOTIFY fish, 'cod'")
    assert [heard.next(), heard.next(), other.next()] == ["crow", "owl", "cod"]
    assert heard.empty()
    notices.close()
    notices.close()


def test_who_follows_later_is_told_to_read_everything_and_the_others_are_not(url, connection):
    with started(url) as notices:
        first = Heard().follow(notices, "birds")
        assert first.next() == GAP
        second = Heard().follow(notices, "birds")
        assert second.next() == GAP
        connection.execute("NOTIFY birds, 'crow'")
        assert [first.next(), second.next()] == ["crow", "crow"]


def test_an_error_of_one_follower_is_not_the_others(url, connection):
    with started(url) as notices:
        notices.follow("birds", lambda _: 1 / 0, lambda: None)
        heard = Heard().follow(notices, "birds")
        assert heard.next() == GAP
        connection.execute("NOTIFY birds, 'crow'")
        assert heard.next() == "crow"


def test_after_a_restart_of_the_server_everything_has_to_be_read_anew(own_postgres):
    with started(own_postgres.url()) as notices:
        heard = Heard().follow(notices, "birds")
        assert heard.next() == GAP
        own_postgres.restart()
        assert heard.next() == GAP
        own_postgres.execute("NOTIFY birds, 'crow'")
        assert heard.next() == "crow"


def test_a_server_that_stands_still_does_not_hold_up_the_end(own_postgres):
    with contextlib.ExitStack() as stack:
        connected = stack.enter_context(started(own_postgres.url()))
        assert Heard().follow(connected, "birds").next() == GAP
        own_postgres.pause()
        stack.callback(own_postgres.resume)
        Heard().follow(connected, "fish")  # the server does not answer this
        connecting = stack.enter_context(started(own_postgres.url()))
        begun = time.monotonic()
        connected.close()
        connecting.close()
        assert time.monotonic() - begun < 6


def test_it_may_be_closed_without_having_been_started(url):
    Notices(url, "test").close()
