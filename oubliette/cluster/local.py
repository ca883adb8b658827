"""LocalCluster: Ray's head and raylets of several nodes on one machine, for trials and tests.

Run as `python -m oubliette.cluster.local FOLDER NODES` it is the process that owns them all. It
writes one line of JSON once the cluster is up, and ends with it on SIGTERM or SIGINT.
Where it is killed, Ray's reaper ends the rest: all are of its process group.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oubliette.cluster.environment import ray_environment

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

LABEL: Final = "oubliette/node"
"""Label of a raylet that gives the node's name."""

LOCALHOST: Final = "127.0.0.1"
SESSIONS: Final = "s"
"""Folder of Ray's logs and sockets; short, as their paths must be."""
STORE_BYTES: Final = 80 * 1024 * 1024  # Ray's object store; frames are small, this is its least


class LocalCluster:
    """A head and raylets that this process owns, all bound to 127.0.0.1.

    Args:
        folder: for the token, Ray's database and Ray's sockets; a short path, since Ray makes
            sockets in it (in `s` below it, 68 bytes longer).
        names: of the nodes; Ray's head runs beside the first.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder = folder
        self.names = names
        self.nodes: dict[str, Any] = {}
        self._cluster: Any = None

    def __enter__(self) -> Self:
        """Start all; takes 5 to 50 seconds."""
        os.environ.update(ray_environment(self.folder, head=True))
        # Ray notes the newest cluster's address there; elsewhere that would be another user's.
        os.environ["RAY_TMPDIR"] = str(self.folder)
        for each in ("ray", SESSIONS):
            (self.folder / each).mkdir(mode=0o700, exist_ok=True)
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(shutdown_at_exit=True)
        try:
            for name in self.names:
                self.add(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def add(self, name: str) -> None:
        """Start the raylet of one more node, or of one that was lost."""
        head = {
            "temp_dir": str(self.folder / SESSIONS),
            "include_dashboard": False,
            "no_monitor": True,
        }
        self.nodes[name] = self._cluster.add_node(
            node_ip_address=LOCALHOST,
            num_cpus=2,
            object_store_memory=STORE_BYTES,
            labels={LABEL: name},
            **({} if self.nodes else head | {"gcs_server_port": 0}),
        )

    def pids(self) -> dict[str, list[int]]:
        """The raylet of each node: `{"node1": [pid]}`."""
        return {
            name: [each.process.pid for each in node.all_processes["raylet"]]
            for name, node in self.nodes.items()
        }

    @property
    def address(self) -> str:
        """Address of the GCS, `host:port`."""
        return str(self._cluster.address)

    def close(self) -> None:
        for name in reversed(self.nodes):
            self.nodes[name].kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        self.nodes.clear()


def main(arguments: list[str]) -> int:
    """Run a cluster until a signal, or the end of standard input."""
    folder, *names = arguments
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    with LocalCluster(Path(folder), names) as cluster:
        print(json.dumps({"address": cluster.address, "raylets": cluster.pids()}), flush=True)  # noqa: T201
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
