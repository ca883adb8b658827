"""A trial cluster on one machine: its start, its state, and its end with all its processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.cluster import trial
from oubliette.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.requires("ray"),
    pytest.mark.whole,
    pytest.mark.timeout(300),
    # The processes outlive the object that started them, which is what they are for.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    base = Path(tempfile.mkdtemp(prefix="obt-", dir="/tmp"))
    yield base / "t"
    try:
        trial.down(base / "t")
    except NotFound:
        pass
    shutil.rmtree(base, ignore_errors=True)


def processes_of(folder: Path) -> list[str]:
    """Command lines of live processes that name the folder."""
    found: list[str] = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            found.append(words)
    return found


def state_by_another_driver(folder: Path, address: str) -> Any:
    code = (
        "import json, sys; from pathlib import Path\n"
        "from oubliette.cluster.driver import connect\n"
        "connect(Path(sys.argv[1]), sys.argv[2])\n"
        "from oubliette.cluster.nodes import node_state\n"
        "print(json.dumps(node_state('node1', 10)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "ray"), address],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_it_starts_tells_its_state_survives_its_agent_and_ends_whole(folder: Path) -> None:
    status = trial.up(folder, 1, "tests.cluster.echo_node:main", {})
    assert (status["running"], status["agent"]) == (True, True)
    assert [each["state"] for each in status["nodes"]] == ["running"]
    with pytest.raises(AlreadyExists, match="is running"):
        trial.up(folder, 1, "tests.cluster.echo_node:main", {})

    agent = json.loads((folder / trial.STATE_FILE).read_text())["agent"]["pid"]
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    assert not trial.status(folder)["agent"]
    after = state_by_another_driver(folder, status["address"])
    assert (after["state"], after["epoch"]) == ("running", status["nodes"][0]["epoch"])

    assert trial.down(folder)
    ends = time.monotonic() + 20
    while left := processes_of(folder):
        assert time.monotonic() < ends, left
        time.sleep(0.2)
    with pytest.raises(NotFound):
        trial.status(folder)
