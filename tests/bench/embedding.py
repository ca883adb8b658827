"""What the API for Python programs costs, each beside a floor: `python -m tests.bench.embedding`.

Every figure of ours is measured in turn with its floor, in the same run. The exit code is 1 where a
limit is not kept. A further row is a further `Row` in `ROWS`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

Measured = Callable[[], float]
"""Measures once, in milliseconds."""


class Row(NamedTuple):
    """One figure and its floor."""

    name: str
    ours: Measured
    floor_name: str
    floor: Measured
    limit: float | None = None
    """Most milliseconds of ours."""
    part: float | None = None
    """Most of ours, as a part of the floor."""


class Figures(NamedTuple):
    """Medians in milliseconds."""

    ours: float
    floor: float

    @property
    def ratio(self) -> float:
        """Ours by the floor."""
        return self.ours / self.floor


def fresh(code: str) -> Measured:
    """Milliseconds that this code takes in a new interpreter, whose own start is not counted."""
    program = (
        "import time\n"
        "began = time.perf_counter()\n"
        f"{code}\n"
        "print((time.perf_counter() - began) * 1e3)\n"
    )

    def measure() -> float:
        done = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        return float(done.stdout)

    return measure


def process(code: str) -> Measured:
    """Milliseconds from the start of a new interpreter with this code to its end."""

    def measure() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return (time.perf_counter() - began) * 1e3

    return measure


_CONNECT = """
from oubliette.api.http import HttpConnection
HttpConnection("http://127.0.0.1:9", "key")
"""
_CLIENT = """
import httpx2, ssl
httpx2.AsyncClient(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
"""


def call_of_a_tool(door: str) -> Measured:
    """Median milliseconds of an agent's call of a function of a program, through this door."""

    def measure() -> float:
        program = [sys.executable, "-m", "tests.bench.embedding_calls", "calls", door, "300"]
        done = subprocess.run(program, check=True, capture_output=True, text=True)
        return float(done.stdout)

    return measure


ROWS = (
    Row(
        "import oubliette",
        fresh("import oubliette"),
        "import msgspec",
        fresh("import msgspec"),
        150,
    ),
    Row(
        "python -c 'import oubliette'",
        process("import oubliette"),
        "python -c pass",
        process("pass"),
    ),
    Row("a connection to a server", fresh(_CONNECT), "an httpx2.AsyncClient", fresh(_CLIENT)),
    Row(
        "a tool call, in process",
        call_of_a_tool("embedded"),
        "the same over HTTP",
        call_of_a_tool("connected"),
        part=0.5,
    ),
)


def measure(row: Row, rounds: int) -> Figures:
    """Ours and the floor in turn, after one round that fills the caches."""
    row.ours()
    row.floor()
    pairs = [(row.ours(), row.floor()) for _ in range(rounds)]
    return Figures(*(statistics.median(each) for each in zip(*pairs, strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    failed = 0
    found: dict[str, Figures] = {}
    print(f"{'milliseconds':32}{'ours':>8}{'floor':>8}{'ratio':>8}{'wanted':>8}")
    for row in ROWS:
        figures = found[row.name] = measure(row, options.rounds)
        wanted = "" if row.limit is None else f"< {row.limit:g}"
        wanted = wanted if row.part is None else f"{row.part:g} x"
        print(
            f"{row.name:32}{figures.ours:8.2f}{figures.floor:8.2f}{figures.ratio:8.2f}"
            f"{wanted:>8}  floor: {row.floor_name}"
        )
        failed |= row.limit is not None and figures.ours > row.limit
        failed |= row.part is not None and figures.ratio > row.part
    print(json.dumps({name: figures._asdict() for name, figures in found.items()}))
    return failed


if __name__ == "__main__":
    sys.exit(main())
