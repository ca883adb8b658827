"""`make bench`: every benchmark, each with its floor in the same run.

python -m tests.bench [NAME…]
"""

from __future__ import annotations

import subprocess
import sys

NAMES = (
    "kit",
    "store",
    "growth",
    "actors",
    "start",
    "host",
    "client",
    "front",
    "front_calls",
    "relay",
    "engines",
    "agents",
    "embedding",
    "postgres_store",
    "log_order",
    "cluster",
    "cluster_calls",
    "cluster_homes",
    "cluster_sessions",
    "snapshots",
    "clones",
)


def main(chosen: list[str]) -> int:
    unknown = set(chosen) - set(NAMES)
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
        return 2
    failed = 0
    for name in chosen or NAMES:
        print(f"== {name}", flush=True)
        failed |= subprocess.run(
            [sys.executable, "-m", f"tests.bench.{name}"], check=False
        ).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
