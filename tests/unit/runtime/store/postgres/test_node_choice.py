"""The choice of a node is a pure function: fit first, then most room, and reasons for a refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.errors import Unavailable
from oubliette.runtime.store.postgres.cluster.node_choice import choose_node, misfit, room_after
from oubliette.runtime.store.postgres.cluster.node_records import (
    NodeLoad,
    NodeOffer,
    NodeRecord,
    ProjectNeeds,
)

GIB = 1024**3
LABELS = st.dictionaries(st.sampled_from(["gpu", "zone"]), st.sampled_from(["a", "b"]))


@st.composite
def clusters(draw: st.DrawFn) -> list[NodeRecord]:
    return [
        NodeRecord(
            name=name,
            epoch=1,
            state=draw(st.sampled_from(["running", "running", "running", "draining", "gone"])),
            lease_seconds=draw(st.sampled_from([9.0, 9.0, 9.0, -1.0])),
            uptime_seconds=1.0,
            address="",
            offer=NodeOffer(
                memory_bytes=draw(st.integers(0, 8)) * GIB,
                processors=draw(st.integers(0, 8)),
                live_sessions=draw(st.integers(0, 20)),
                runtimes=tuple(draw(st.sets(st.sampled_from(["docker", "process"])))),
                container_types=("base", *draw(st.sets(st.sampled_from(["dev", "rust"])))),
                limits_containers=draw(st.booleans()),
                labels=draw(LABELS),
            ),
            load=NodeLoad(
                memory_bytes=draw(st.integers(0, 8)) * GIB,
                processors=draw(st.integers(0, 8)),
                live_sessions=draw(st.integers(0, 20)),
            ),
        )
        for name in draw(st.lists(st.text("abcd", min_size=1, max_size=3), unique=True, max_size=5))
    ]


NEEDS = st.builds(
    ProjectNeeds,
    memory_bytes=st.integers(0, 4).map(lambda n: n * GIB),
    processors=st.integers(0, 4).map(float),
    live_sessions=st.integers(0, 3),
    runtime=st.sampled_from([None, "docker", "process"]),
    container_type=st.sampled_from([None, None, "base", "rust"]),
    labels=LABELS,
)


@given(NEEDS, clusters())
def test_the_chosen_node_fits_and_has_most_room_and_a_refusal_has_each_reason(needs, cluster):
    fitting = [node for node in cluster if misfit(needs, node) is None]
    if not fitting:
        with pytest.raises(Unavailable) as refused:
            choose_node(needs, cluster)
        for node in cluster:
            assert f"{node.name}: {misfit(needs, node)}" in str(refused.value)
        return
    chosen = choose_node(needs, cluster)
    assert chosen in fitting
    assert room_after(needs, chosen) == max(room_after(needs, node) for node in fitting)
    assert room_after(needs, chosen) <= 1


@given(NEEDS, clusters(), st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_changes_nothing(needs, cluster, random):
    shuffled = random.sample(cluster, len(cluster))
    try:
        chosen = choose_node(needs, cluster)
    except Unavailable as refused:
        with pytest.raises(Unavailable) as again:
            choose_node(needs, shuffled)
        assert str(again.value) == str(refused)
    else:
        assert choose_node(needs, shuffled) == chosen


@given(NEEDS, clusters())
def test_a_node_that_takes_a_project_is_within_what_it_offers(needs, cluster):
    for node in cluster:
        if misfit(needs, node) is None:
            assert node.state == "running"
            assert node.lease_seconds > 0
            memory, processors = needs.memory_bytes, needs.processors
            if not node.offer.limits_containers:
                memory, processors = 0, 0.0
            assert node.load.memory_bytes + memory <= max(
                node.offer.memory_bytes, node.load.memory_bytes if memory == 0 else 0
            )
            assert processors <= node.offer.processors
            assert needs.container_type in {None, *node.offer.container_types}
            assert node.load.live_sessions + needs.live_sessions <= node.offer.live_sessions
            assert needs.labels.items() <= node.offer.labels.items()
            assert needs.runtime in {None, *node.offer.runtimes}


def test_each_reason_is_a_sentence_about_the_node():
    offer = NodeOffer(memory_bytes=GIB, processors=2, live_sessions=4, runtimes=("docker",))
    node = NodeRecord(
        name="a",
        epoch=1,
        state="running",
        lease_seconds=9,
        uptime_seconds=1,
        address="",
        offer=offer,
        load=NodeLoad(live_sessions=4),
    )
    roomy = ProjectNeeds(live_sessions=0)
    assert misfit(roomy, node) is None
    assert misfit(ProjectNeeds(), node) == "4 of 4 sessions live on it"
    for needs, reason in (
        ({"runtime": "podman"}, "it has no container runtime podman"),
        ({"labels": {"gpu": "yes"}}, "it has no label gpu=yes"),
        ({"memory_bytes": 2 * GIB}, "1024 MiB are free, 2048 MiB are needed"),
        ({"processors": 2.5}, "it has 2 processors, 2.5 are needed"),
        ({"container_type": "rust"}, "it has no container type rust"),
    ):
        assert misfit(ProjectNeeds(live_sessions=0, **needs), node) == reason
    with pytest.raises(Unavailable, match="there are no nodes"):
        choose_node(roomy, [])


def node(name: str, *, offer: NodeOffer, load: NodeLoad = NodeLoad()) -> NodeRecord:
    return NodeRecord(
        name=name,
        epoch=1,
        state="running",
        lease_seconds=9,
        uptime_seconds=1,
        address="",
        offer=offer,
        load=load,
    )


def test_containers_share_processors_and_fewer_shares_are_more_room():
    offer = NodeOffer(memory_bytes=64 * GIB, processors=2, live_sessions=100)
    busy, idle = NodeLoad(processors=6.0), NodeLoad(processors=4.0)
    needs = ProjectNeeds(memory_bytes=GIB, processors=2.0)
    found = [node("a", offer=offer, load=busy), node("b", offer=offer, load=idle)]
    assert choose_node(needs, found).name == "b"


def test_where_containers_have_no_limits_nothing_is_kept_for_them():
    small = NodeOffer(memory_bytes=GIB, processors=1, live_sessions=4, limits_containers=False)
    assert (
        misfit(ProjectNeeds(memory_bytes=6 * GIB, processors=2.0), node("a", offer=small)) is None
    )
