"""What the in-container host costs: its start, a spawn, a pair's throughput and latency.

Run as `python -m tests.bench.host [--rounds N] [-o json]`. Each figure stands beside a floor
measured in the same run: a bare interpreter, `subprocess.Popen`, a socketpair. The exit code is 1
where a limit is not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from oubliette.incontainer.build import build
from tests.unit.incontainer.hostclient import Control, HostProcess, Link

if TYPE_CHECKING:
    from collections.abc import Callable

MOVED = 1 << 30  # bytes per round through a pair
PINGS = 2000
SPAWNS = 100

LIMITS = {  # (figure, limit, at least or at most)
    "relay_gb_per_second": (0.5, "least"),
    "spawn_ms": (5.0, "most"),
    "start_over_floor_ms": (60.0, "most"),
}


def once(call: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def bare() -> float:
    return once(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True))


def start(pyz: Path) -> float:
    started = time.perf_counter()
    with HostProcess(target=["-I", "-S", str(pyz)]):
        return time.perf_counter() - started


def moved(source: socket.socket, sink: socket.socket) -> float:
    """Gigabytes per second from one socket to the other, written by a process of its own."""
    source.settimeout(None)
    sink.settimeout(None)
    pid = os.fork()
    if pid == 0:
        piece = bytes(1 << 20)
        for _ in range(MOVED >> 20):
            source.sendall(piece)
        os._exit(0)
    buffer = bytearray(1 << 20)
    left = MOVED
    started = time.perf_counter()
    while left > 0:
        left -= sink.recv_into(buffer)
    seconds = time.perf_counter() - started
    os.waitpid(pid, 0)
    return MOVED / seconds / 1e9


def pinged(one: socket.socket, other: socket.socket) -> float:
    """Microseconds for a byte there and one back, at the median."""
    rounds = []
    for _ in range(PINGS):
        started = time.perf_counter()
        one.sendall(b"x")
        other.recv(1)
        other.sendall(b"y")
        one.recv(1)
        rounds.append(time.perf_counter() - started)
    return statistics.median(rounds) * 1e6


def attached(control: Control, size: int = 256 << 20) -> float:
    """Gigabytes per second of a process's output over an attached link, acknowledged as it comes."""
    control.start("big", "head", "-c", str(size), "/dev/zero")
    link = control.attach("big")
    got = acked = 0
    started = time.perf_counter()
    while data := link.sock.recv(1 << 18):
        for frame in link._decoder.feed(data):
            got += len(frame.payload) if frame.kind == 1 else 0
        if got - acked >= 8 << 20:
            control.ask("ack", proc="big", out=got)
            acked = got
    seconds = time.perf_counter() - started
    assert got == size
    control.ask("ack", proc="big", out=got)
    control.ask("forget", proc="big")
    return size / seconds / 1e9


def spawned(control: Control) -> float:
    """Milliseconds from `start` to its answer: exec has happened."""
    rounds = []
    for i in range(SPAWNS):
        rounds.append(once(lambda i=i: control.start(f"p{i}", "/bin/true")))
        control.event("exited", proc=f"p{i}")
        control.ask("forget", proc=f"p{i}")
    return statistics.median(rounds) * 1e3


def popened() -> float:
    return once(lambda: subprocess.Popen(["/bin/true"]).wait())


def pair(host: HostProcess, control: Control) -> tuple[Link, Link]:
    control.expect("s", "secret")
    up, down = control.upstream("s"), host.dial()
    down.send(b"OUBLIETTE-DOWNSTREAM p s secret\n")
    control.event("paired")
    return up, down


def measure(rounds: int) -> dict[str, float]:
    """All figures, medians of `rounds`."""

    def median(call: Callable[[], float]) -> float:
        return statistics.median(call() for _ in range(rounds))

    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        pyz = build(Path(folder) / "oubliette.pyz")
        figures["bare_python_ms"] = median(bare) * 1e3
        figures["start_ms"] = median(lambda: start(pyz)) * 1e3
        figures["start_over_floor_ms"] = figures["start_ms"] - figures["bare_python_ms"]
        with HostProcess(target=["-I", "-S", str(pyz)]) as host:
            control = host.control()
            figures["rss_mb"] = control.ask("stats")["rss"] / 1e6
            figures["popen_wait_ms"] = median(popened) * 1e3
            figures["spawn_ms"] = median(lambda: spawned(control))
            up, down = pair(host, control)
            one, other = socket.socketpair()
            with one, other:
                figures["socketpair_gb_per_second"] = median(lambda: moved(one, other))
                figures["socketpair_roundtrip_us"] = median(lambda: pinged(one, other))
            figures["relay_gb_per_second"] = median(lambda: moved(up.sock, down.sock))
            figures["relay_roundtrip_us"] = median(lambda: pinged(up.sock, down.sock))
            figures["attach_gb_per_second"] = median(lambda: attached(control))
    return figures


def verdicts(figures: dict[str, float]) -> dict[str, bool]:
    """Whether each limit is kept."""
    return {
        name: figures[name] >= limit if which == "least" else figures[name] <= limit
        for name, (limit, which) in LIMITS.items()
    }


def main() -> int:
    """Measure and print; 1 if a limit is not kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", dest="output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    figures = measure(options.rounds)
    kept = verdicts(figures)
    if options.output == "json":
        print(json.dumps(figures | {"kept": kept}))
    else:
        for name, value in figures.items():
            print(f"{name:28}{value:10.2f}")
        print(f"{'start / bare python':28}{figures['start_ms'] / figures['bare_python_ms']:10.2f}")
        ratio = figures["relay_gb_per_second"] / figures["socketpair_gb_per_second"]
        print(f"{'relay / socketpair':28}{ratio:10.2f}")
        for name, (limit, which) in LIMITS.items():
            print(f"{name}: at {which} {limit:g}, {'kept' if kept[name] else 'NOT KEPT'}")
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
