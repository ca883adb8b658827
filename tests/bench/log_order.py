"""Very many events of three writing nodes, read by a fourth: none is skipped, none comes twice.

    python -m tests.bench.log_order [--events 1000000] [--url URL]

Each writing node is a process; a tenth of their commits is held back, and one process is killed
meanwhile. Without a URL it starts a server of its own, which flushes its log to the disk. Prints
JSON, and fails if the readers do not get each event once and in order.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from tests.bench.flushing_postgres import empty_database
from tests.unit.runtime.store.postgres import many_events

SECONDS = 1800.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--url", default="", help="an empty database")
    options = parser.parse_args()
    with empty_database(options.url) as url:
        outcome = many_events.run(url, options.events, SECONDS)
    figures = dataclasses.asdict(outcome) | {"events_per_second": outcome.events_per_second}
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
