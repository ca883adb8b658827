"""Nodes on a real Ray cluster: placement, order, and what is learned of deaths."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from tests.cluster.conftest import ClusterOfTest

pytestmark = [
    pytest.mark.requires("ray"),
    pytest.mark.whole,
    pytest.mark.timeout(240),
    # Ray leaves its sockets and log files to the collector.
    pytest.mark.filterwarnings("default"),
]


def wait_for_run_after(epoch: int, node: str, seconds: float = 60) -> dict[str, object]:
    """The state of a run of the node that is later than `epoch`."""
    from oubliette.cluster.nodes import node_state

    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        state = node_state(node)
        if state.get("epoch", 0) > epoch and state["ready"]:
            return state
        time.sleep(0.2)
    pytest.fail(f"{node} was not started again in {seconds} s: {state}")


def test_a_node_without_a_machine_is_refused_at_once_with_the_reason(
    cluster: ClusterOfTest,
) -> None:
    from oubliette.cluster.node_context import NodeStart
    from oubliette.cluster.nodes import NodeNotPlaced, start_node

    started = time.monotonic()
    with pytest.raises(NodeNotPlaced, match="no machine has that name; alive are node1, node2"):
        start_node(NodeStart("node9", "tests.cluster.echo_node:main"))
    assert time.monotonic() - started < 5


def test_starting_a_node_twice_finds_the_one_that_runs(cluster: ClusterOfTest) -> None:
    from oubliette.cluster.node_context import NodeStart
    from oubliette.cluster.nodes import node_state, start_node

    before = node_state("node1")
    again = start_node(NodeStart("node1", "tests.cluster.echo_node:main"))
    assert again["epoch"] == before["epoch"]


def test_a_node_has_the_priority_of_any_other_server(cluster: ClusterOfTest) -> None:
    from oubliette.cluster.nodes import node_state

    assert psutil.Process(node_state("node1")["pid"]).nice() == psutil.Process().nice()


def test_frames_of_one_sender_arrive_in_order_and_once(cluster: ClusterOfTest) -> None:
    cluster.call("node1", "tells", node="node3", count=20_000)
    assert cluster.call("node3", "kept") == [str(number) for number in range(20_000)]


def test_an_unknown_peer_is_gone_at_once(cluster: ClusterOfTest) -> None:
    answer = cluster.call("node1", "ask-mute", 10, node="node9")
    assert answer["gone"] == "there is no such node"


def test_a_handler_that_blocks_the_program_does_not_block_the_node(
    cluster: ClusterOfTest,
) -> None:
    from oubliette.cluster.nodes import node_state

    blocked = cluster.begin("node2", "block", seconds=3)
    assert node_state("node2", 2)["state"] == "running"
    cluster.result(blocked)


def test_a_killed_process_is_known_in_two_seconds_and_started_again(
    cluster: ClusterOfTest,
) -> None:
    from oubliette.cluster.nodes import node_state

    cluster.call("node1", "ask", node="node2")
    state = node_state("node2")
    waits = cluster.begin("node1", "ask-mute", node="node2")
    cluster.call("node1", "ask", node="node2")
    killed = time.time()
    os.kill(state["pid"], signal.SIGKILL)
    assert cluster.result(waits, 30)["at"] - killed < 2
    after = wait_for_run_after(state["epoch"], "node2")
    assert after["restarted"]
    cluster.call("node1", "ask", node="node2")  # another run, reached by the same name
    cluster.call("node2", "ask", node="node1")


def test_a_node_that_hangs_is_ended_and_started_anew(cluster: ClusterOfTest) -> None:
    from oubliette.cluster.node_context import NodeStart
    from oubliette.cluster.nodes import NodeNotPlaced, end_actor, node_state, start_node

    before = node_state("node2")
    hung = psutil.Process(int(before["pid"]))
    hung.suspend()
    end_actor("node2")
    hung.wait(30)
    ends = time.monotonic() + 60
    while True:  # its name is free a moment later
        try:
            state = start_node(NodeStart("node2", "tests.cluster.echo_node:main"), 10)
            break
        except NodeNotPlaced:
            assert time.monotonic() < ends
            time.sleep(0.2)
    assert (state["epoch"] > before["epoch"], state["restarted"]) == (True, False)
    cluster.call("node1", "ask", node="node2")
    end_actor("node9")  # there is none


def test_nodes_go_on_without_rays_head_and_with_its_next_one(cluster: ClusterOfTest) -> None:
    from oubliette.cluster.nodes import node_state

    cluster.call("node1", "ask", node="node3")
    epochs = {name: node_state(name)["epoch"] for name in ("node1", "node3")}
    asks = cluster.begin("node1", "asks-for", node="node3", seconds=6)
    cluster.do("gcs stop")
    time.sleep(4)  # what takes time here is the outage
    cluster.do("gcs start")
    assert cluster.result(asks, 60) > 10
    assert {name: node_state(name, 20)["epoch"] for name in epochs} == epochs


def test_a_machine_that_stands_still_is_given_up_in_ten_seconds(cluster: ClusterOfTest) -> None:
    from oubliette.cluster.nodes import node_state

    cluster.call("node1", "ask", node="node3")
    stopped = [node_state("node3")["pid"], *cluster.raylets["node3"]]
    waits = cluster.begin("node1", "ask-mute", node="node3")
    cluster.call("node1", "ask", node="node3")
    since = time.time()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert cluster.result(waits, 60)["at"] - since < 12
        cluster.call("node1", "ask", node="node2")
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)
    # Ray's head has given the machine up: for the other tests it has to come back as a new one.
    cluster.do("add node3")
    cluster.start("node3")
    cluster.call("node1", "ask", node="node3")


def test_a_dead_machine_refuses_its_node_until_it_is_back(cluster: ClusterOfTest) -> None:
    from oubliette.cluster.node_context import NodeStart
    from oubliette.cluster.nodes import NodeNotPlaced, node_state, start_node

    cluster.call("node1", "ask", node="node2")
    epoch = node_state("node2")["epoch"]
    waits = cluster.begin("node1", "ask-mute", node="node2")
    cluster.call("node1", "ask", node="node2")
    since = time.time()
    for pid in cluster.raylets["node2"]:
        os.kill(pid, signal.SIGKILL)
    assert cluster.result(waits, 60)["at"] - since < 8
    ends = time.monotonic() + 20
    while True:  # Ray's head learns of it later than the peers
        try:
            start_node(NodeStart("node2", "tests.cluster.echo_node:main"))
        except NodeNotPlaced as refused:
            if "is dead" in refused.message:
                break
        assert time.monotonic() < ends
        time.sleep(0.2)
    cluster.do("add node2")
    cluster.start("node2")
    assert node_state("node2")["epoch"] > epoch
    cluster.call("node1", "ask", node="node2")
