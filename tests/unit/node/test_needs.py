"""What a project needs of its node, from its record or its request and the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.config.loader import load
from oubliette.node.homes import needs_of, needs_of_new
from oubliette.records import Project

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.config.schema import Config

pytest.importorskip("psycopg")
MIB = 1024 * 1024


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "oubliette.toml").write_text(
        "[containers]\nmemory_mb = 1000\ncpus = 1.5\n"
        "[container_types.rust]\nmemory_mb = 8000\n"
        "[project_containers.shop]\ncpus = 4.0\n"
    )
    return load(tmp_path, {}).config


def project(**given: Any) -> Project:
    return Project(id="proj_1", created_at=0, default_workspace_id="w", uid=1, **given)


def test_a_project_needs_what_its_containers_may_have(config):
    plain = needs_of(config, project(name="plain"))
    assert (plain.memory_bytes, plain.processors, plain.isolated) == (1000 * MIB, 1.5, False)
    rust = needs_of(config, project(name="shop", container_type="rust", workspace_isolation=True))
    assert (rust.memory_bytes, rust.processors, rust.isolated) == (8000 * MIB, 4.0, True)
    assert rust.container_type == "rust"


@pytest.mark.parametrize("name", ["plain", "shop"])
@pytest.mark.parametrize("container_type", [None, "rust"])
@pytest.mark.parametrize("placement", [None, {"labels": {"gpu": "yes"}}, {"runtime": "docker"}])
def test_a_project_needs_the_same_before_and_after_it_was_made(
    config, name, container_type, placement
):
    asked = {"name": name, "container_type": container_type, "placement": placement}
    record = msgspec.structs.replace(
        project(name=name, container_type=container_type), **(placement or {})
    )
    assert needs_of_new(config, asked) == needs_of(config, record)


def test_a_request_that_will_be_refused_needs_nothing_special(config):
    assert needs_of_new(config, {"name": 7}) == needs_of(config, None)
    assert needs_of_new(config, {"name": "x", "placement": {"labels": [1]}}).labels == {}
