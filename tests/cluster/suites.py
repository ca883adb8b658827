"""The suites of one server on a cluster: whether they are to run so, and what cannot.

`OUBLIETTE_TEST_NODES=3`, which `make test-cluster` sets, gives each module of `tests/system` three
nodes instead of a server.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

VARIABLE: Final = "OUBLIETTE_TEST_NODES"
OWN: Final = "it starts a server of its own, which is no cluster"
EMBEDDED: Final = "a system in the process of its program has no nodes"

ALONE: Final[dict[str, str]] = {
    "test_map::test_a_map_outlives_a_killed_server": OWN,
    "test_map::test_a_callers_map_waits_for_room_among_its_own": OWN,
    "test_permissions::test_what_nobody_decides_is_denied_at_the_deadline": OWN,
    "test_permissions::test_a_decision_counts_after_the_server_was_killed": OWN,
    "test_permissions::test_a_crash_at_any_moment_loses_no_question_and_no_decision": OWN,
    "test_permissions::test_a_lost_container_takes_the_question_with_it": OWN,
    "test_shared_trees::test_a_server_that_was_killed_counts_the_tree_as_before": OWN,
    "test_python_api::test_a_system_is_opened_and_closed_without_a_block": EMBEDDED,
    "test_python_endings::test_what_is_awaited_when_a_block_ends_ends_with_it": EMBEDDED,
    "test_python_endings::test_a_cancelled_end_of_a_block_is_an_end_all_the_same": EMBEDDED,
    "test_python_endings::test_a_call_that_waits_for_a_server_that_fails_ends_with_an_error": EMBEDDED,
}
"""Test, `module::function`, and why it means nothing there."""
SECONDS: Final = 300
"""Time for a test with the start of what it needs, on a busy machine."""
DOORS: Final = {"embedded", "blocking"}
"""Doors of the Python API that lead to no server; a door is the parameter of the fixture `ob`."""


def nodes() -> int:
    """The number of nodes that a server has in this run; 0: it is alone."""
    return int(os.environ.get(VARIABLE, "0"))


def mark(item: pytest.Item) -> None:
    """Have a test skipped that means nothing on a cluster; all need a cluster and a database."""
    item.add_marker(pytest.mark.requires("postgres"))
    item.add_marker(pytest.mark.requires("ray"))
    # The first test of a run waits for Ray, that of each module for three nodes.
    item.add_marker(pytest.mark.timeout(SECONDS), append=False)
    reason = alone(item)
    if reason is not None:
        item.add_marker(pytest.mark.skip(f"alone: {reason}"))


def alone(item: pytest.Item) -> str | None:
    """Why the test means nothing on a cluster; None if it does."""
    reason = ALONE.get(f"{item.path.stem}::{item.name.partition('[')[0]}")
    if reason is not None:
        return reason
    callspec = getattr(item, "callspec", None)
    door = None if callspec is None else callspec.params.get("ob")
    return EMBEDDED if door in DOORS else None
