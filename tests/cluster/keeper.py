"""The process that owns a test run's cluster: Ray's processes, the nodes on them, the database.

It ends with its standard input, so never after the run. Its input are lines of JSON; it answers each
with one: `{"start": [NODES], "homes": FOLDER}`, `{"stop": [NODES]}`, `{"database": ""}` for the
address of a new one, `{"drop": ADDRESS}`, `{"head": "kill"}` and `{"head": "start"}` for Ray's. A
node is started when it serves.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from oubliette.cluster.environment import OTHER_MACHINES
from oubliette.cluster.local import LocalCluster
from tests.postgres import PostgresServer

MAIN = "tests.cluster.server_node:main"
START = 60.0  # seconds that nodes may take on a busy machine
STOP = 20.0
LOOK = 0.05  # Ray gives no notice of what is awaited here


def start(nodes: list[str], homes: str) -> dict[str, Any]:
    from oubliette.cluster.node_context import NodeStart
    from oubliette.cluster.nodes import start_node

    with ThreadPoolExecutor(len(nodes)) as pool:
        list(
            pool.map(lambda node: start_node(NodeStart(node, MAIN, {"home": homes}), START), nodes)
        )
    return wait(nodes)


def wait(nodes: list[str]) -> dict[str, Any]:
    """The state of each node, once all serve."""
    from oubliette.cluster.nodes import node_state

    ends = time.monotonic() + START
    while True:
        states = {node: node_state(node) for node in nodes}
        if all(each.get("ready") for each in states.values()):
            return states
        failed = [each for each in states.values() if each["state"] in {"failed", "ended"}]
        if failed or time.monotonic() > ends:
            raise RuntimeError(f"nodes did not start: {states}")
        time.sleep(LOOK)


def stop(nodes: list[str]) -> dict[str, Any]:
    from oubliette.cluster.nodes import find_node, stop_node
    from oubliette.errors import Unavailable

    with ThreadPoolExecutor(len(nodes)) as pool:
        ended = dict(zip(nodes, pool.map(lambda node: stop_node(node, STOP), nodes), strict=True))
    ends = time.monotonic() + STOP
    for node in nodes:  # the name is free when Ray's head knows of the end
        while time.monotonic() < ends:
            try:
                find_node(node)
            except Unavailable:
                break
            time.sleep(LOOK)
    return ended


def answer(order: dict[str, Any], postgres: PostgresServer, cluster: LocalCluster) -> Any:
    match order:
        case {"head": "kill"}:
            return cluster.nodes[cluster.names[0]].kill_gcs_server()
        case {"head": "start"}:
            return cluster.nodes[cluster.names[0]].start_gcs_server()
        case {"start": nodes, "homes": homes}:
            return start(nodes, homes)
        case {"stop": nodes}:
            return stop(nodes)
        case {"database": _}:
            return postgres.new_database()
        case {"drop": address}:
            return postgres.drop_database(address)
    raise ValueError(f"unknown order: {order}")


def main(folder: str, *names: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the end of the run is the end of its input
    # As `connect` has it, but before Ray is imported: this process starts the cluster as well.
    os.environ[OTHER_MACHINES] = "0"
    with PostgresServer() as postgres, LocalCluster(Path(folder), list(names)) as cluster:
        from oubliette.cluster.driver import connect, disconnect

        connect(Path(folder), cluster.address)
        print(json.dumps({"address": cluster.address, "pid": os.getpid()}), flush=True)
        try:
            for line in sys.stdin:
                try:
                    done = {"done": answer(json.loads(line), postgres, cluster)}
                except Exception as error:
                    done = {"error": f"{type(error).__name__}: {error}"}
                print(json.dumps(done), flush=True)
        finally:
            disconnect()
    # Where the run was killed, nobody else does.
    shutil.rmtree(Path(folder).parent, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
