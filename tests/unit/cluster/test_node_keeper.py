"""What an agent does at each look at a node that fails, is silent, or has no machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oubliette.cluster.node_context import NodeStart
from oubliette.cluster.node_keeper import (
    MOST_SECONDS,
    SILENT_SECONDS,
    STEADY_SECONDS,
    NodeKeeper,
)
from oubliette.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

START = NodeStart("node1", "some.module:main")


class NodeOfRay:
    """A node as Ray has it: it may be silent, and a start of it may fail."""

    def __init__(self) -> None:
        self.now = 0.0
        self.epoch = 1
        self.answer: dict[str, Any] | None = None
        self.machine = True
        self.calls: list[str] = []
        self.keeper = NodeKeeper(START, self, lambda: self.now)

    def node_state(self, node: str) -> dict[str, Any]:
        return self.answer or {"node": node, "state": "unreachable", "error": "no answer in time"}

    def has_machine(self, node: str) -> bool:
        return self.machine

    def start_node(self, start: NodeStart) -> dict[str, Any]:
        self.calls.append("start")
        if self.answer is None:
            raise Unavailable("it was not started in 5 s")
        return self.answer

    def restart_process(self, node: str) -> None:
        self.calls.append("restart")

    def end_actor(self, node: str) -> None:
        self.calls.append("end")

    def ready(self) -> None:
        self.answer = {"state": "running", "ready": True, "epoch": self.epoch}

    def fails(self, error: str) -> None:
        self.epoch += 1
        self.answer = {"state": "failed", "ready": False, "epoch": self.epoch, "error": error}

    def looks(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Its states while it is looked at each second."""
        ends = self.now + seconds
        while self.now < ends:
            yield self.keeper.look()
            self.now += 1

    def seconds_until_restart(self) -> float:
        began, calls = self.now, len(self.calls)
        for _ in self.looks(1000):
            if len(self.calls) > calls:
                break
        assert self.calls[-1] == "restart"
        return self.now - began


@pytest.fixture
def node() -> NodeOfRay:
    return NodeOfRay()


def test_a_node_that_fails_again_and_again_is_started_ever_more_seldom(node: NodeOfRay) -> None:
    waits: list[float] = []
    for _ in range(8):
        node.fails("ConfigError: no")
        waits.append(node.seconds_until_restart())
    assert 5 <= waits[0] <= 8
    assert waits == sorted(waits)
    assert MOST_SECONDS <= waits[-1] <= MOST_SECONDS + 3


def test_a_failure_is_told_with_its_reason_and_the_time_of_the_next_start(node: NodeOfRay) -> None:
    node.fails("ConfigError: no")
    (state,) = node.looks(1)
    assert state["state"] == "failed"
    failure = state["failure"]
    assert (failure["reason"], failure["count"]) == ("ConfigError: no", 1)
    assert 5 <= failure["again_at"] - failure["at"] <= 7.1


def test_the_latest_failure_is_still_told_when_the_node_runs(node: NodeOfRay) -> None:
    node.fails("ConfigError: no")
    list(node.looks(1))
    node.ready()
    (state,) = node.looks(1)
    assert state["failure"]["reason"] == "ConfigError: no"


def test_the_silence_of_a_node_that_is_started_again_hides_no_failure(node: NodeOfRay) -> None:
    node.fails("ConfigError: no")
    list(node.looks(1))
    node.answer = None
    (state,) = node.looks(1)
    assert state["error"] == "it was not started in 5 s"
    assert state["failure"]["reason"] == "ConfigError: no"


def test_failures_are_forgotten_once_the_node_was_ready_for_a_while(node: NodeOfRay) -> None:
    for _ in range(4):
        node.fails("x")
        node.seconds_until_restart()
    node.ready()
    list(node.looks(STEADY_SECONDS + 2))
    node.fails("x")
    assert node.seconds_until_restart() <= 8


def test_a_node_that_is_ready_for_a_moment_is_not_forgiven(node: NodeOfRay) -> None:
    for _ in range(4):
        node.fails("x")
        node.seconds_until_restart()
        node.ready()
        list(node.looks(STEADY_SECONDS / 2))
    node.fails("x")
    assert node.seconds_until_restart() > 60


def test_a_silent_node_gets_a_new_actor_after_a_while(node: NodeOfRay) -> None:
    node.ready()
    list(node.looks(1))
    node.answer = None
    states = list(node.looks(SILENT_SECONDS))
    assert set(node.calls) == {"start"}
    assert states[0]["failure"]["reason"] == "no answer in time"
    list(node.looks(2))
    assert node.calls[-3:] in (["start", "end", "start"], ["end", "start", "start"])
    assert node.calls.count("end") == 1


def test_a_first_start_that_takes_long_is_no_failure(node: NodeOfRay) -> None:
    assert not any("failure" in state for state in node.looks(SILENT_SECONDS / 2))


def test_a_node_that_answers_again_in_time_keeps_its_actor(node: NodeOfRay) -> None:
    for _ in range(5):
        node.answer = None
        list(node.looks(SILENT_SECONDS / 2))
        node.ready()
        list(node.looks(1))
    assert "end" not in node.calls


def test_a_node_whose_machine_is_gone_has_time_for_its_start_once_that_is_back(
    node: NodeOfRay,
) -> None:
    node.machine = False
    list(node.looks(10 * SILENT_SECONDS))
    node.machine = True
    states = list(node.looks(SILENT_SECONDS))
    assert "end" not in node.calls
    assert states[-1] == {
        "node": "node1",
        "state": "missing",
        "error": "it was not started in 5 s",
        "failure": states[0]["failure"],
    }
