"""`serve --cluster auto` on a machine where people ran `ray start`, once or twice."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from oubliette.cluster.ray_here import raylets_here

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.requires("ray"),
    pytest.mark.requires("postgres"),
    pytest.mark.whole,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),
]
ROOT = Path(__file__).parents[2]
SECONDS = 150
ATTEMPTS = 3  # on a busy machine Ray gives up its own start, as its agent has 15 s for its own
ALPHA, BETA, GAMMA = (f"{name}{os.getpid()}" for name in ("alpha", "beta", "gamma"))


class MachineOfUser:
    """A folder as HOME of the user, and the commands that the documentation names."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "o"
        self.environment = {
            **{name: text for name, text in os.environ.items() if "OUBLIETTE_" not in name},
            "PYTHONPATH": str(ROOT),
            "OUBLIETTE_CONTAINERS__RUNTIME": "process",
            "OUBLIETTE_PROCESS__SANDBOX": "bubblewrap" if shutil.which("bwrap") else "best-effort",
        }
        self.environment.pop("RAY_ADDRESS", None)
        self._folder = folder

    def oubliette(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "oubliette", *words, "--home", str(self.home)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env=self.environment,
        )

    def variables(self) -> dict[str, str]:
        """What `eval "$(oubliette cluster env --head)"` sets."""
        done = self.oubliette("cluster", "env", "--head", "-o", "json")
        assert done.returncode == 0, done.stderr
        self.home.chmod(0o711)  # without a sandbox agents are other users, who pass through it
        return json.loads(done.stdout)

    @contextlib.contextmanager
    def ray_head(self, node: str) -> Iterator[str]:
        """`ray start --head` with the label of a node; the address of the head."""
        with contextlib.ExitStack() as stack:
            for attempt in range(ATTEMPTS):
                place = self._folder / f"{node[0]}{attempt}"  # short: Ray makes sockets in it
                port = stack.enter_context(self._ray_start(place, node))
                if port:
                    ours = f":{port}"
                    found = [each.address for each in raylets_here()]
                    yield next(each for each in found if each.endswith(ours))
                    return
                stack.close()
            pytest.fail(f"Ray has not started: {said(place)}")

    @contextlib.contextmanager
    def _ray_start(self, place: Path, node: str) -> Iterator[int]:
        """One attempt; the port of the head, 0 if it was in vain."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (place / "gcs").mkdir(parents=True)
        words = ["start", "--head", f"--port={port}", f"--labels=oubliette/node={node}"]
        words += ["--include-dashboard=false", "--block"]
        # For a test: small, and apart from the other.
        words += ["--num-cpus=1", "--object-store-memory=80000000", f"--temp-dir={place}"]
        variables = self.variables() | {
            "RAY_gcs_storage_path": str(place / "gcs"),
            "RAY_TMPDIR": str(place),
            "RAY_raylet_start_wait_time_s": "40",
        }
        with (place / "out").open("w") as out:
            process = subprocess.Popen(
                [str(Path(sys.executable).with_name("ray")), *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment | variables,
                start_new_session=True,
            )
        try:
            while process.poll() is None and "Ray runtime started" not in said(place):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
            yield port if process.poll() is None else 0
        finally:
            left = processes_that_name(place)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            psutil.wait_procs(left, 15)
            for each in processes_that_name(place):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            process.kill()
            process.wait(10)

    @contextlib.contextmanager
    def node(self, name: str, *options: str) -> Iterator[dict[str, Any]]:
        """`oubliette serve --cluster auto` until it is ready."""
        words = ["serve", "--home", str(self.home), "--cluster", "auto", "--node", name]
        with (self._folder / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "oubliette", *words, *options, "-o", "json"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
            )
        try:
            assert process.stdout
            line = process.stdout.readline()
            assert line, (self._folder / "log").read_text()[-3000:]
            yield json.loads(line)
        finally:
            process.terminate()
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait(10)
                process.stdout.close()


def said(place: Path) -> str:
    """What `ray start` has printed."""
    return (place / "out").read_text(errors="replace")


def processes_that_name(folder: Path) -> list[psutil.Process]:
    """Processes of Ray's with this folder on their command line."""
    return [each for each in psutil.process_iter(["cmdline"]) if f"{folder}/" in str(each.info)]


@pytest.fixture
def machine() -> Iterator[MachineOfUser]:
    folder = Path(tempfile.mkdtemp(prefix="oa", dir="/tmp"))
    folder.chmod(0o711)
    yield MachineOfUser(folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_node_joins_the_ray_that_was_started_for_it_and_never_another(
    machine: MachineOfUser, postgres_url: str
) -> None:
    """Steps: Ray for alpha; Ray for beta, later; alpha serves there; gamma is refused by names."""
    with machine.ray_head(ALPHA) as alpha, machine.ray_head(BETA) as beta:
        found = {each.node: each.address for each in raylets_here()}
        assert (found[ALPHA], found[BETA]) == (alpha, beta)
        refused = machine.oubliette(
            "serve", "--cluster", "auto", "--node", GAMMA, "--database", postgres_url
        )
        assert refused.returncode == 2, refused.stderr
        assert "part of several clusters of Ray" in refused.stderr
        assert f"{alpha} (node {ALPHA})" in refused.stderr
        assert f"{beta} (node {BETA})" in refused.stderr
        assert "--cluster HOST:PORT" in refused.stderr
        with machine.node(ALPHA, "--database", postgres_url, "--port", "0") as ready:
            assert ready["node"] == ALPHA
            node = psutil.Process(ready["pid"])
            raylet = node.parent()
            assert raylet
            assert f"--gcs-address={alpha}" in raylet.cmdline()
