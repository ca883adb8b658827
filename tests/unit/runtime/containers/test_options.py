"""What the configuration means for one container: defaults, its type, its project."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from oubliette.config.container_options import ContainerOptions, ContainerOverrides
from oubliette.config.schema import Config, ContainersConfig, DockerConfig, PodmanConfig
from oubliette.errors import RuntimeFailure
from oubliette.records import Project
from oubliette.runtime.containers import options as container_options
from oubliette.runtime.containers.base import MIB, Hardening

SHOP = Project(id="proj_1", name="shop", created_at=0.0, default_workspace_id="w", uid=1)
OTHER = msgspec.structs.replace(SHOP, id="proj_2", name="other")


def tables(**options: dict[str, Any]) -> dict[str, ContainerOverrides]:
    return {name: msgspec.convert(table, ContainerOverrides) for name, table in options.items()}


def test_everything_is_closed_unless_something_is_said() -> None:
    assert container_options.hardening_of(Config(), "docker") == Hardening()
    for option in ("read_only", "drop_capabilities", "no_new_privileges", "init"):
        assert getattr(ContainerOptions(), option) is True
    assert ContainerOptions().cap_add == ()
    assert ContainerOptions().ipc == "private"


def test_a_projects_table_goes_before_its_types_and_that_before_the_defaults() -> None:
    config = Config(
        containers=ContainersConfig(memory_mb=100, pids=100, cpus=1.0, dev_image="dev:1"),
        container_types=tables(dev={"pids": 200, "cpus": 2.0}),
        project_containers=tables(shop={"cpus": 3.0, "tmp_mb": 1}, proj_1={"tmp_mb": 2}),
    )
    limits = container_options.limits_of(config, "docker", "dev", SHOP)
    assert (limits.memory_bytes, limits.pids, limits.cpus) == (100 * MIB, 200, 3.0)
    assert limits.tmp_bytes == 2 * MIB  # an id says more than a name
    assert container_options.image_of(config, "dev", SHOP) == "dev:1"
    assert container_options.limits_of(config, "docker", "base", OTHER).pids == 100
    assert container_options.limits_of(config, "process", "base", SHOP).tmp_bytes == 2 * MIB


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("read_only", False),
        ("drop_capabilities", False),
        ("cap_add", ("CHOWN",)),
        ("no_new_privileges", False),
        ("init", False),
        ("ipc", "shareable"),
        ("oci_runtime", "runsc"),
    ],
)
@pytest.mark.parametrize("table", ["containers", "type", "project"])
def test_each_option_can_be_set_for_all_for_a_type_and_for_a_project(
    option: str, value: Any, table: str
) -> None:
    found = {option: value}
    config = {
        "containers": Config(containers=msgspec.convert(found, ContainersConfig)),
        "type": Config(container_types=tables(own=found)),
        "project": Config(project_containers=tables(shop=found)),
    }[table]
    assert getattr(container_options.hardening_of(config, "docker", "own", SHOP), option) == value
    for elsewhere in ("base", OTHER), ("own", OTHER), ("base", SHOP):
        hard = container_options.hardening_of(config, "docker", *elsewhere)
        meant = {
            "containers": True,
            "type": elsewhere[0] == "own",
            "project": elsewhere[1] is SHOP,
        }[table]
        assert (getattr(hard, option) == value) is meant


def test_sizes_are_in_megabytes_and_files_open_begin_low() -> None:
    config = Config(
        containers=ContainersConfig(
            memory_mb=64, shm_mb=3, log_mb=5, log_files=2, nofile=100, oom_score=7, pids=9, cpus=0.5
        )
    )
    hard = container_options.hardening_of(config, "podman")
    assert (hard.memory_bytes, hard.shm_bytes, hard.log_bytes) == (64 * MIB, 3 * MIB, 5 * MIB)
    assert (hard.log_files, hard.oom_score, hard.pids, hard.cpus) == (2, 7, 9, 0.5)
    assert hard.nofile == (100, 100)
    assert Hardening().nofile == container_options.hardening_of(Config(), "podman").nofile


def test_an_engines_oci_runtime_is_for_those_that_name_none() -> None:
    config = Config(
        docker=DockerConfig(oci_runtime="runsc"),
        podman=PodmanConfig(oci_runtime="crun"),
        container_types=tables(fast={"oci_runtime": "runc"}),
    )
    assert container_options.hardening_of(config, "docker").oci_runtime == "runsc"
    assert container_options.hardening_of(config, "podman").oci_runtime == "crun"
    assert container_options.hardening_of(config, "docker", "fast").oci_runtime == "runc"


def test_types_are_the_two_that_are_there_and_those_with_a_table() -> None:
    config = Config(container_types=tables(gpu={}, dev={"pids": 9}))
    assert container_options.types_of(config, images=True) == ("base", "dev", "gpu")
    assert container_options.types_of(Config(), images=False) == ("base",)
    container_options.check_type(config, "gpu")
    with pytest.raises(RuntimeFailure, match="gone") as caught:
        container_options.check_type(config, "gone")
    assert "[container_types.gone]" in (caught.value.hint or "")


def test_a_user_id_can_be_given_to_new_projects() -> None:
    config = Config(
        container_types=tables(own={"uid": 1000}), project_containers=tables(shop={"uid": 1001})
    )
    assert container_options.uid_of(config, "own", "x") == 1000
    assert container_options.uid_of(config, "own", "shop") == 1001
    assert container_options.uid_of(config, None, "x") is None
