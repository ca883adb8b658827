"""When an agent is given up, and the reason that users read."""

from __future__ import annotations

from typing import Any

import pytest

from oubliette.actors.agent_watchdog.deadlines import (
    contact_overdue,
    retry_shown,
    start_overdue,
    too_many_retries,
)
from tests.unit.runtime.store.samples import session as sample


def record(**changes: Any) -> Any:
    fields = {"process_id": "proc_1", "agent_ready": False, "agent_contacted": False}
    return sample(**fields | changes)


def test_an_agent_that_is_not_ready_in_time_names_the_setting() -> None:
    assert start_overdue(record(), "proc_1", 60.0) == (
        "scripted was not ready 60 seconds after its start (raise agents.start_timeout_seconds)"
    )


def test_an_agent_that_is_known_to_start_slowly_names_the_remedy() -> None:
    reason = start_overdue(record(), "proc_1", 60.0, "give it a cache")
    assert reason is not None
    assert reason.endswith("(give it a cache, or raise agents.start_timeout_seconds)")


def test_an_agent_that_never_starts_our_server_names_what_it_has_to_do() -> None:
    reason = contact_overdue(record(agent_ready=True), "proc_1", 30.0)
    assert reason is not None
    assert "has not started Oubliette's MCP server within 30 seconds" in reason
    assert "agents.contact_timeout_seconds" in reason


def test_an_agent_that_kept_its_deadline_is_not_given_up() -> None:
    kept = record(agent_ready=True, agent_contacted=True)
    assert start_overdue(kept, "proc_1", 60.0) is None
    assert contact_overdue(kept, "proc_1", 30.0) is None


@pytest.mark.parametrize("process", ["proc_2", None])
def test_the_deadline_of_one_process_is_not_that_of_another(process: str | None) -> None:
    other = record(process_id=process)
    assert start_overdue(other, "proc_1", 60.0) is None
    assert contact_overdue(other, "proc_1", 30.0) is None


@pytest.mark.parametrize(("attempt", "given_up"), [(3, False), (4, True), (None, False)])
def test_a_model_may_fail_as_often_as_it_is_allowed_to(
    attempt: int | None, *, given_up: bool
) -> None:
    reason = too_many_retries({"attempt": attempt, "message": "busy"}, 3)
    assert (reason is not None) is given_up
    if reason is not None:
        assert reason == "the model failed 4 times in a row: busy (agents.max_retries)"


def test_a_model_that_cannot_be_reached_is_given_up_sooner() -> None:
    data = {"message": "refused (http://h/v1)", "unreachable": True}
    assert too_many_retries({**data, "attempt": 2}, 8) is None
    reason = too_many_retries({**data, "attempt": 3}, 8)
    assert reason == "the model was not reached 3 times in a row: refused (http://h/v1)"
    assert too_many_retries({**data, "attempt": 2}, 1) is not None


def test_a_failing_model_is_shown_with_its_reason() -> None:
    assert retry_shown({"attempt": 2, "message": "busy"}) == "it has failed 2 times: busy"
    assert retry_shown({"attempt": 2}) == "it has failed 2 times: no reason"
