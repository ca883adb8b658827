"""One cluster of three nodes per module, in processes that end with the test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = ("node1", "node2", "node3")
MAIN = "tests.cluster.echo_node:main"
START = 90.0  # seconds for a start on a busy machine
ROOT = Path(__file__).parents[2]


class ClusterOfTest:
    """A running cluster, and this process as its driver."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self._process = process
        ready = self._line()
        self.address: str = ready["address"]
        self.raylets: dict[str, list[int]] = ready["raylets"]

    def _line(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"the cluster ended: {(self.folder.parent / 'err').read_text()[-2000:]}"
        return json.loads(line)

    def do(self, command: str) -> None:
        """Have the process that owns the cluster do something to it."""
        assert self._process.stdin
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        self.raylets = self._line()["raylets"]

    def start(self, *names: str) -> None:
        from oubliette.cluster.node_context import NodeStart
        from oubliette.cluster.nodes import start_node

        for name in names:
            start_node(NodeStart(name, MAIN), START)

    def begin(self, node: str, verb: str, /, **body: Any) -> Any:
        """Request something of a node's program; the answer is `result` of what is returned."""
        from oubliette.cluster.nodes import find_node

        return find_node(node).request.remote(verb, json.dumps(body).encode())

    def result(self, reference: Any, seconds: float = 60) -> Any:
        import ray

        return json.loads(ray.get(reference, timeout=seconds))

    def call(self, node: str, verb: str, wait: float = 60, /, **body: Any) -> Any:
        return self.result(self.begin(node, verb, **body), wait)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterOfTest]:
    # Ray makes Unix sockets in it, whose paths are at most 107 bytes long.
    base = Path(tempfile.mkdtemp(prefix="obr-", dir="/tmp"))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with (base / "err").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.holder", str(base / "c"), *NODES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env=environment,
        )
    kept = dict(os.environ)
    try:
        made = ClusterOfTest(base / "c", process)
        from oubliette.cluster.driver import connect

        connect(made.folder, made.address)
        made.start(*NODES)
        yield made
    finally:
        import ray

        ray.shutdown()
        assert process.stdin and process.stdout
        process.stdin.close()
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait(10)
            process.stdout.close()
            os.environ.clear()
            os.environ.update(kept)
            shutil.rmtree(base, ignore_errors=True)
