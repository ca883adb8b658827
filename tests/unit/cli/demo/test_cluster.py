"""DemoCluster, the trial cluster of the demo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.cli.demo.cluster import AGAIN_SECONDS, DemoCluster
from oubliette.cli.demo.lines import DemoOutput
from oubliette.config.loader import load

if TYPE_CHECKING:
    from pathlib import Path


def test_a_node_is_not_given_up_while_the_demo_waits_for_it(tmp_path: Path) -> None:
    cluster = DemoCluster(tmp_path, "process", {}, 3, DemoOutput())
    config = load(tmp_path, environ=cluster.environment).config
    assert config.cluster.machine_lost_seconds > AGAIN_SECONDS
    assert config.containers.orphan_grace_seconds > AGAIN_SECONDS
