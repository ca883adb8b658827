"""Which cluster of Ray `--cluster auto` stands for, on machines with none, one and several."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.cluster.ray_here import Raylet, chosen_address, raylet_of
from oubliette.errors import ConfigError

PROGRAM = "/opt/ray/core/src/ray/raylet/raylet"
RAYLETS = st.lists(
    st.builds(
        Raylet,
        st.sampled_from(["10.0.0.1:6379", "10.0.0.2:6379", "127.0.0.1:40001"]),
        st.sampled_from(["", "alpha", "beta"]),
    ),
    max_size=4,
)


def test_a_raylet_is_known_by_its_program_and_says_its_head_and_its_label():
    words = [PROGRAM, "--port=1", "--gcs-address=10.0.0.1:6379", '--labels={"oubliette/node": "a"}']
    assert raylet_of(words) == Raylet("10.0.0.1:6379", "a")
    assert raylet_of(words[:3]) == Raylet("10.0.0.1:6379")
    assert raylet_of([*words[:3], '--labels={"zone": "b"}']) == Raylet("10.0.0.1:6379")
    assert raylet_of([*words[:3], "--labels=broken"]) == Raylet("10.0.0.1:6379")
    assert raylet_of(words[:2]) is None
    assert raylet_of(["/usr/bin/grep", "raylet", "--gcs-address=10.0.0.1:6379"]) is None
    assert raylet_of([]) is None


def test_the_only_cluster_is_meant_whatever_its_label():
    for label in ("alpha", "beta", ""):
        assert chosen_address("alpha", [Raylet("10.0.0.1:6379", label)], {}) == "10.0.0.1:6379"


def test_of_several_the_one_with_the_label_of_the_node_is_meant():
    found = [Raylet("10.0.0.1:6379"), Raylet("10.0.0.2:6379", "alpha"), Raylet("h:1", "beta")]
    assert chosen_address("alpha", found, {}) == "10.0.0.2:6379"


def test_several_are_refused_by_name_if_none_is_the_node_s():
    found = [Raylet("10.0.0.1:6379"), Raylet("10.0.0.2:6379", "beta")]
    with pytest.raises(ConfigError) as refused:
        chosen_address("alpha", found, {})
    assert str(refused.value).startswith(
        "This machine is part of several clusters of Ray: 10.0.0.1:6379 (without a node's label),"
        " 10.0.0.2:6379 (node beta)"
    )
    assert "--cluster HOST:PORT" in str(refused.value)


def test_a_machine_without_ray_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match="No Ray of this user runs .*ray start first"):
        chosen_address("alpha", [], {})


def test_the_variable_of_ray_s_own_commands_decides_before_all_else():
    found = [Raylet("10.0.0.1:6379", "alpha")]
    assert chosen_address("alpha", found, {"RAY_ADDRESS": "10.0.0.9:1"}) == "10.0.0.9:1"
    for same in ("", "auto"):
        assert chosen_address("alpha", found, {"RAY_ADDRESS": same}) == "10.0.0.1:6379"


@given(RAYLETS)
def test_what_is_chosen_runs_here_and_a_refusal_means_none_or_several(raylets):
    addresses = {each.address for each in raylets}
    mine = {each.address for each in raylets if each.node == "alpha"}
    try:
        chosen = chosen_address("alpha", raylets, {})
    except ConfigError:
        assert len(mine or addresses) != 1
    else:
        assert {chosen} == (mine or addresses)
