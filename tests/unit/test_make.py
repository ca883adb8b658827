"""What the commands of the Makefile run."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lines(*words: str, folder: Path = ROOT) -> str:
    """What `make` would run, without its running."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [make, "--dry-run", "--always-make", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_a_checkout_in_a_folder_with_a_blank_is_installed_there(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    given = [word for word in shlex.split(lines("setup", folder=folder)) if "VIRTUAL_ENV" in word]
    assert given == [f"VIRTUAL_ENV={folder}/.venv"] * 2


def test_lint_looks_whether_what_scripts_write_is_current() -> None:
    scripts = "for each in .ci/api_signatures.py .ci/blocking_api.py .ci/tables.py"
    assert scripts in lines("renew")
    assert lines("lint").splitlines()[-1].startswith(f"{scripts}; do")
    assert "$each --check || exit" in lines("lint")


def test_the_demo_has_the_options_that_were_given_and_no_others() -> None:
    assert lines("demo").rstrip().endswith("/oubliette demo")
    assert lines("demo", "CLUSTER=3", "KEEP=1").strip().endswith("--keep --cluster 3")


def test_a_cluster_of_the_demo_is_none_of_the_tests() -> None:
    assert "pytest" not in lines("demo", "CLUSTER=3").rpartition("oubliette demo")[2]
    assert "OUBLIETTE_TEST_NODES=3" in lines("test-cluster")
    assert "OUBLIETTE_TEST_NODES" not in lines("test")
