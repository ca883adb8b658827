"""What the agent of a node has reported of it, in the node's home and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.cluster.agent_state import AGENT_FILE, latest_state, troubles_of, write_state

if TYPE_CHECKING:
    from pathlib import Path

READY = {"node": "a", "state": "running", "ready": True}
FAILED = {"node": "a", "state": "failed", "ready": False, "error": "no"}
FAILURE = {"reason": "no", "at": 100.0, "count": 1, "again_at": 130.0}


def test_the_latest_report_is_found_by_the_home_of_the_node(tmp_path: Path) -> None:
    home = tmp_path / "a"
    assert latest_state(home) is None
    write_state(home, FAILED)
    write_state(home, READY)
    assert latest_state(home) == READY
    assert (home / AGENT_FILE).stat().st_mode & 0o777 == 0o600


def test_a_node_that_is_ready_and_never_failed_is_no_trouble() -> None:
    assert troubles_of(READY, 110.0) == []


def test_a_failure_is_told_with_its_age_and_the_time_until_the_next_start() -> None:
    lines = troubles_of(FAILED | {"failure": FAILURE}, 110.0)
    assert lines == ["a: failed: no", "a: failed 10 s ago: no; starts again in 20 s"]


def test_the_failure_of_a_node_that_runs_again_is_still_told() -> None:
    lines = troubles_of(READY | {"failure": FAILURE | {"count": 4}}, 160.0)
    assert lines == ["a: failed 60 s ago: no; 4 failures in a row"]
