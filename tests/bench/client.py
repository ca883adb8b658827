"""How long `oubliette-client` takes to be ready, and what it weighs, beside a bare interpreter.

Run as `python -m tests.bench.client [--rounds N] [-o json]`. Each round starts, one after the other:
the floor (a bare `python3 -I -S`, to its exit), the client from the checkout and the client from the
zipapp, both to the answer to their first `tools/list`, with the caller's tools in it.
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
import threading
import time
from pathlib import Path

ISOLATED = ("-I", "-S")  # as agents start it
ROOT = Path(__file__).resolve().parents[2]
BUDGET_MS = 150.0  # beside the floor, on an idle machine
BUDGET_MB = 25.0
CALLS = 500

CONFIG = {
    "jsonrpc": "2.0", "method": "caller_tools_config", "type": "caller_tools_config",
    "params": {"caller_id": "ant", "tools": [{"name": "add", "inputSchema": {"type": "object"}}]},
}  # fmt: skip
OPENING = b"".join(
    json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
    for message in (
        {
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "b", "version": "1"},
            },
        },
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
    )
)


def serve(listener: socket.socket) -> None:
    """Answer every call at once, on each link."""

    def link(peer: socket.socket) -> None:
        with peer, peer.makefile("rwb") as lines:
            lines.readline()
            lines.write(json.dumps(CONFIG).encode() + b"\n")
            lines.flush()
            for line in lines:
                request = json.loads(line)
                if "id" in request:
                    lines.write(b'{"jsonrpc":"2.0","id":%d,"result":{"n":1}}\n' % request["id"])
                    lines.flush()

    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=link, args=(peer,), daemon=True).start()


def floor() -> tuple[float, float]:
    """Milliseconds of a bare interpreter, to its exit, and the MB that it holds; started as ours."""
    code = "print([line for line in open('/proc/self/status') if line.startswith('VmRSS')][0])"
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *ISOLATED, "-c", code], check=True, capture_output=True, text=True
    )
    return (time.perf_counter() - started) * 1000, int(done.stdout.split()[1]) / 1024


def client(argv: list[str], env: dict[str, str]) -> tuple[float, float, list[float]]:
    """Milliseconds to the first tool list, resident MB then, and milliseconds of each call."""
    started = time.perf_counter()
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        process.stdin.write(OPENING)
        process.stdin.flush()
        process.stdout.readline()
        listed = json.loads(process.stdout.readline())
        ready = (time.perf_counter() - started) * 1000
        assert any(tool["name"] == "ant_add" for tool in listed["result"]["tools"]), listed
        calls = []
        for number in range(CALLS):
            params = {"name": "ant_add", "arguments": {"a": 1}}
            line = json.dumps(
                {"jsonrpc": "2.0", "id": number + 3, "method": "tools/call", "params": params}
            )
            began = time.perf_counter()
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            process.stdout.readline()
            calls.append((time.perf_counter() - began) * 1000)
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident = next(
            int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")
        )
        process.stdin.close()
        process.wait(10)
    return ready, resident / 1024, calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as folder:
        path, zipapp = f"{folder}/relay.sock", f"{folder}/oubliette.pyz"
        subprocess.run(
            [sys.executable, "-m", "oubliette.incontainer.build", zipapp], check=True, cwd=ROOT
        )
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        env = {
            **os.environ, "OUBLIETTE_PROJECT_ID": "p", "OUBLIETTE_SESSION_ID": "s",
            "OUBLIETTE_PAIRING_SECRET": "x", "OUBLIETTE_RELAY_SOCKET": path,
        }  # fmt: skip
        kinds = {
            "checkout": [sys.executable, "-m", "oubliette.incontainer", "client"],
            "zipapp": [sys.executable, *ISOLATED, zipapp, "client"],
        }
        floors: list[tuple[float, float]] = []
        runs: dict[str, list[tuple[float, float, list[float]]]] = {kind: [] for kind in kinds}
        for _ in range(options.rounds):
            floors.append(floor())
            for kind, argv in kinds.items():
                runs[kind].append(client(argv, env))
        listener.close()
    base = statistics.median(ms for ms, _ in floors)
    held = statistics.median(mb for _, mb in floors)
    figures: dict[str, dict[str, float]] = {
        "floor": {"median_ms": round(base, 1), "resident_mb": round(held, 1)}
    }
    for kind, found in runs.items():
        ready = statistics.median(run[0] for run in found)
        calls = sorted(ms for run in found for ms in run[2])
        figures[kind] = {
            "ready_ms": round(ready, 1),
            "beside_floor_ms": round(ready - base, 1),
            "ratio_to_floor": round(ready / base, 2),
            "resident_mb": round(max(run[1] for run in found), 1),
            "call_median_ms": round(statistics.median(calls), 3),
            "call_p99_ms": round(calls[len(calls) * 99 // 100], 3),
        }
    kept = all(
        figures[kind]["beside_floor_ms"] < BUDGET_MS and figures[kind]["resident_mb"] < BUDGET_MB
        for kind in kinds
    )
    if options.output == "json":
        print(json.dumps({"bench": "client", "within_budget": kept, **figures}))
    else:
        for name, row in figures.items():
            print(f"{name:9}", "  ".join(f"{key} {value}" for key, value in row.items()))
        print(
            "within budget"
            if kept
            else f"OVER BUDGET ({BUDGET_MS:g} ms beside the floor, {BUDGET_MB:g} MB)"
        )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
