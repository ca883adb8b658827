"""A driver of Ray connects only where Ray has its settings."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from oubliette.cluster.environment import SETTINGS, ray_environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.requires("ray")

CONNECT = """
import sys, ray
from pathlib import Path
from oubliette.cluster.driver import connect
connect(Path(sys.argv[1]), "127.0.0.1:1")
"""


def test_a_process_that_imported_ray_without_the_settings_is_told_which(tmp_path: Path) -> None:
    ray_environment(tmp_path, head=True)
    environment = {name: value for name, value in os.environ.items() if name[:4] != "RAY_"}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", CONNECT, str(tmp_path)],
        env=environment | SETTINGS,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = done.stderr.splitlines()[-1]
    assert told == (
        "RuntimeError: ray was imported before these were set: RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    )
