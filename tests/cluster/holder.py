"""The process that owns a test's cluster; it ends with its standard input, so never after the test.

Its input are lines: `gcs stop`, `gcs start`, `add NODE`; it answers each with one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from oubliette.cluster.local import LocalCluster


def main(folder: str, *names: str) -> None:
    with LocalCluster(Path(folder), list(names)) as cluster:
        print(json.dumps({"address": cluster.address, "raylets": cluster.pids()}), flush=True)
        for line in sys.stdin:
            head = cluster.nodes[names[0]]
            match line.split():
                case ["gcs", "stop"]:
                    head.kill_gcs_server()
                case ["gcs", "start"]:
                    head.start_gcs_server()
                case ["add", name]:
                    cluster.add(name)
            print(json.dumps({"done": line.strip(), "raylets": cluster.pids()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
