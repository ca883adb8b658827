"""The commands of a cluster on a real one, as a newcomer and as a service manager use them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from oubliette.cluster import trial, trial_servers
from oubliette.cluster.owned_process import OwnedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [
    pytest.mark.requires("ray"),
    pytest.mark.requires("postgres"),
    pytest.mark.whole,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
]
ROOT = Path(__file__).parents[2]
SECONDS = 240
PROMPT = "say hello from the other node"


class ClusterOfCommands:
    """A trial cluster that `oubliette cluster up` has started."""

    def __init__(self, base: Path) -> None:
        self.folder = base / "t"
        self.environment = {
            **{name: text for name, text in os.environ.items() if "OUBLIETTE_" not in name},
            "PYTHONPATH": str(ROOT),
            "OUBLIETTE_CONTAINERS__RUNTIME": "process",
            "OUBLIETTE_PROCESS__SANDBOX": "best-effort",
        }
        self.made: dict[str, Any] = {}

    def run(self, *words: str, key: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "oubliette", *words],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env=self.environment | ({"OUBLIETTE_KEY": key} if key else {}),
        )

    def answer(self, *words: str, key: str = "") -> Any:
        done = self.run(*words, "-o", "json", key=key)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def call(self, node: str, tool: str, /, **arguments: str) -> Any:
        words = [f"{name}={value}" for name, value in arguments.items()]
        url = self.made["nodes"][node]
        return self.answer("call", tool, *words, "--url", url, key=self.made["token"])

    def status(self) -> dict[str, dict[str, Any]]:
        found = self.answer("cluster", "status", "--folder", str(self.folder))
        return {each["node"]: each for each in found["nodes"]}

    def processes(self) -> list[psutil.Process]:
        """All processes of the cluster: the recorded ones, and those that come from them."""
        state = trial.read(self.folder)
        assert state is not None
        assert state.agent is not None
        first = [psutil.Process(each.pid) for each in (state.owner, state.agent)]
        return first + [child for each in first for child in each.children(recursive=True)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterOfCommands]:
    """Two nodes, which all tests leave running."""
    with two_nodes() as made:
        yield made


@pytest.fixture
def own_cluster() -> Iterator[ClusterOfCommands]:
    """Two nodes of one test, which may end them."""
    with two_nodes() as made:
        yield made


@contextlib.contextmanager
def two_nodes() -> Iterator[ClusterOfCommands]:
    base = Path(tempfile.mkdtemp(prefix="obc", dir="/tmp"))
    base.chmod(0o711)
    made = ClusterOfCommands(base)
    try:
        words = ("up", "--local", "--nodes", "2", "--folder", str(made.folder))
        made.made = made.answer("cluster", *words)
        yield made
    finally:
        made.run("cluster", "down", "--folder", str(made.folder))
        shutil.rmtree(base, ignore_errors=True)


def test_a_session_runs_on_another_node_than_the_one_that_is_asked(
    cluster: ClusterOfCommands,
) -> None:
    """Steps: drain node1; a project through it; a session through it; the log; undo."""
    folder = ("--folder", str(cluster.folder))
    assert cluster.answer("cluster", "drain", "node1", *folder) == {
        "node": "node1",
        "draining": True,
    }
    project = cluster.call("node1", "project_create", name="shop", agent="scripted")
    status = cluster.status()
    assert status["node1"]["draining"]
    assert (status["node1"]["projects"], status["node2"]["projects"]) == (0, 1)
    spawned = cluster.call("node1", "session_spawn", project_id=project["id"], prompt=PROMPT)
    text = ""
    for _ in range(60):  # each waits for more events, for a second
        page = cluster.call(
            "node1", "session_events", session_id=spawned["session_id"], wait_seconds="1"
        )
        text = json.dumps(page)
        if "completion" in text:
            break
    assert "hello from the other node" in text
    assert "completion" in text
    assert cluster.status()["node2"]["live_sessions"] == 1
    cluster.answer("cluster", "drain", "node1", "--undo", *folder)
    assert not cluster.status()["node1"]["draining"]


def test_further_keys_are_made_at_the_home_of_a_node(cluster: ClusterOfCommands) -> None:
    home = ("--home", str(cluster.folder / "node1"))
    made = cluster.answer("token", "create", "--scope", "read", *home)
    url = cluster.made["nodes"]["node1"]
    listed = cluster.answer("call", "project_list", "--url", url, key=made["token"])
    assert "projects" in listed


def test_a_second_cluster_in_the_same_folder_is_refused(cluster: ClusterOfCommands) -> None:
    done = cluster.run("cluster", "up", "--local", "--folder", str(cluster.folder))
    assert done.returncode == 7
    assert "is running" in done.stderr
    assert trial.status(cluster.folder)["running"]


def test_it_listens_on_loopback_alone(cluster: ClusterOfCommands) -> None:
    addresses = {
        connection.laddr.ip
        for process in cluster.processes()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert addresses


def test_secrets_are_in_files_that_their_owner_alone_can_read(cluster: ClusterOfCommands) -> None:
    """The token of Ray and the address of the database; neither is on a command line."""
    folder = cluster.folder
    secret = (folder / "ray" / "ray-token").read_text()
    url = trial_servers.database_of_cluster(folder)
    for process in cluster.processes():
        words = " ".join(process.cmdline())
        assert secret not in words
        assert url not in words
    for path in (folder / "ray", folder / "node1", folder / "pg"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o066 == 0, path
    for path in (folder / "ray" / "ray-token", folder / "node1" / "oubliette.toml"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    kept = [path for path in (folder / "ray" / "gcs").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if url.encode() in path.read_bytes()]


def test_it_ends_whole_and_goes_on_with_its_data_and_addresses(
    own_cluster: ClusterOfCommands,
) -> None:
    """Steps: down; nothing runs; the status; up again; the project is there; down and purge."""
    cluster = own_cluster
    cluster.call("node1", "project_create", name="shop", agent="scripted")
    folder = ("--folder", str(cluster.folder))
    before = cluster.processes()
    assert cluster.answer("cluster", "down", *folder)["ended"]
    assert not psutil.wait_procs(before, 20)[1]
    done = cluster.run("cluster", "status", *folder)
    assert done.returncode == 1
    assert "does not answer" in done.stderr
    again = cluster.answer("cluster", "up", "--local", "--nodes", "2", *folder)
    assert again["nodes"] == cluster.made["nodes"]
    cluster.made = again
    names = [each["name"] for each in cluster.call("node1", "project_list")["projects"]]
    assert names == ["shop"]
    assert cluster.answer("cluster", "down", "--purge", *folder)["purged"]
    assert not cluster.folder.exists()


def test_a_start_that_is_interrupted_leaves_nothing_running() -> None:
    base = Path(tempfile.mkdtemp(prefix="obc", dir="/tmp"))
    base.chmod(0o711)
    made = ClusterOfCommands(base)
    words = ["cluster", "up", "--local", "--nodes", "1", "--folder", str(made.folder)]
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "oubliette", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=made.environment,
        ) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "cluster up: PostgreSQL runs\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 130
        named = [each for each in psutil.process_iter(["cmdline"]) if str(base) in str(each.info)]
        assert not psutil.wait_procs(named, 20)[1]
    finally:
        made.run("cluster", "down", "--folder", str(made.folder))
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def ray_of_alpha() -> Iterator[tuple[Path, str]]:
    """A machine named alpha on which Ray runs, as a folder with its token and an address."""
    base = Path(tempfile.mkdtemp(prefix="obc", dir="/tmp"))
    base.chmod(0o711)
    with (
        (base / "err").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "oubliette.cluster.local", str(base / "h"), "alpha"],
            stdout=subprocess.PIPE,
            stderr=errors,
            # The node's process comes from Ray's, and has their variables.
            env=os.environ | {"PYTHONPATH": str(ROOT), "OUBLIETTE_CONTAINERS__RUNTIME": "process"},
        ) as process,
    ):
        try:
            assert process.stdout is not None
            yield base / "h", json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()
            process.wait(60)
    shutil.rmtree(base, ignore_errors=True)


def test_a_server_is_the_node_of_its_machine_until_it_is_stopped(
    ray_of_alpha: tuple[Path, str], postgres_url: str, tmp_path: Path
) -> None:
    """Steps: ready; no address of the database in the list of processes; SIGTERM; refusals."""
    folder, address = ray_of_alpha
    made = ClusterOfCommands(folder)
    words = ["serve", "--home", str(folder), "--cluster", address, "--node", "alpha"]
    given = ["--database", postgres_url, "--port", "0", "-o", "json"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "oubliette", *words, *given],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=made.environment,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (tmp_path / "log").read_text()[-2000:]
        ready = json.loads(line)
        assert (ready["event"], ready["node"]) == ("ready", "alpha")
        node = OwnedProcess.of(ready["pid"])
        assert node.runs
        assert ready["pid"] != process.pid
        assert postgres_url not in " ".join(psutil.Process(process.pid).cmdline())
        found = made.answer("cluster", "status", "--home", str(folder / "alpha"))
        assert [each["url"] for each in found["nodes"]] == [ready["url"]]
        process.terminate()
        assert process.wait(60) == 0
        assert not node.runs
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()
    assert (folder / "alpha" / "oubliette.toml").stat().st_mode & 0o777 == 0o600
    other = made.run(*words, "--database", "postgresql://elsewhere/x")
    assert other.returncode == 1
    assert "has another store.database" in other.stderr
    words[-1] = "beta"
    named = made.run(*words, "--database", postgres_url)
    assert named.returncode == 2
    assert "Ray knows this machine as alpha, not as beta" in named.stderr
    words[words.index("--cluster") + 1] = "127.0.0.1:1"
    away = made.run(*words)
    assert away.returncode == 2
    assert "Ray does not answer at 127.0.0.1:1" in away.stderr
