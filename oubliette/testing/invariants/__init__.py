"""Invariants of logs and of the relay, as checks that name the first event that breaks one.

check_log(events)      # of one session, as `session_events` returns them
check_delivery(received, logs)  # events of a listener, against the logs
check_home(path)       # all sessions of a home, with its tables
"""

from __future__ import annotations

from oubliette.testing.invariants.broken import InvariantBroken
from oubliette.testing.invariants.delivery import check_delivery
from oubliette.testing.invariants.home import HomeSummary, check_home
from oubliette.testing.invariants.log import LogChecker, check_log

__all__ = [
    "HomeSummary",
    "InvariantBroken",
    "LogChecker",
    "check_delivery",
    "check_home",
    "check_log",
]
