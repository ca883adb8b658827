"""What a server takes to start, to stop and to keep idle sessions: `python -m tests.bench.start`.

The floor of the start is a bare uvicorn with an application of one line, started in turn with
ours. Both are asked for `/health` from the first moment on, over and over, by the same client.
Processor seconds, which a busy machine changes less, stand beside the wall clock's.

A home of 20 projects in which sessions live is started too, and again once five of the projects are
broken: of this only the ratio of the processor seconds is told.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from oubliette.testing.server import ServerProcess
from tests.callers import HttpCaller

LIMITS = {
    "health seconds": 1.0,
    "stop seconds": 1.0,
    "MB per 100 sessions": 5.0,
    "with broken projects": 1.3,
}
PROJECTS = 20
BROKEN = (
    "projects/{}",
    "projects/{}/workspaces",
    "projects/{}/workspaces/{}",
    "projects/{}/workspaces/{}/.rlm-context",
    "homes/{}",
)
"""Folders of one project each in whose place is a file."""
DEADLINE = 60.0
BARE = """
import sys, uvicorn
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})
uvicorn.run(app, port=int(sys.argv[1]), lifespan="off", log_config=None)
"""


class Life(NamedTuple):
    """Seconds of one start and stop."""

    health: float
    """From the start of the process to the first 200 of /health."""
    processor: float
    """Of the process, up to then."""
    ready: float
    """To the first 200 of /ready."""
    stop: float
    """From SIGTERM to the end of the process."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _ok(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def until_ok(port: int, path: str, process: subprocess.Popen[bytes] | None = None) -> float:
    deadline = time.perf_counter() + DEADLINE
    while not _ok(port, path):
        ended = process is not None and process.poll() is not None
        if ended or time.perf_counter() > deadline:
            raise RuntimeError(f"no 200 of {path} on port {port}")
        time.sleep(0.002)
    return time.perf_counter()


def _processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def live(command: list[str], port: int, environment: dict[str, str]) -> Life:
    """Start this, wait until it answers, and stop it."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        health = until_ok(port, "/health", process) - began
        processor = _processor(process.pid)
        ready = until_ok(port, "/ready", process) - began
        time.sleep(0.5)  # idle, as a server is that is stopped
        began = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE)
        return Life(health, processor, ready, time.perf_counter() - began)
    finally:
        process.kill()
        process.wait()


def lives(rounds: int) -> tuple[list[Life], list[Life]]:
    """Ours and the bare one's, in turn."""
    ours, bare = [], []
    home = tempfile.mkdtemp(prefix="ob", dir="/tmp")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OUBLIETTE_")}
    environment |= {
        "OUBLIETTE_CONTAINERS__RUNTIME": "process",
        "OUBLIETTE_PROCESS__SANDBOX": "bubblewrap" if shutil.which("bwrap") else "best-effort",
    }
    try:
        for _ in range(rounds):
            port = _free_port()
            bare.append(live([sys.executable, "-c", BARE, str(port)], port, environment))
            port = _free_port()
            serve = ["-m", "oubliette", "serve", "--home", home, "--port", str(port)]
            ours.append(live([sys.executable, *serve], port, environment))
    finally:
        shutil.rmtree(home)
    return ours, bare


def _private_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


async def memory(sessions: int) -> float:
    """MB that 100 sessions cost the server, each idle after a turn, its agent alive."""
    settings = {"sessions.max_live_per_project": 2 * sessions + 10}
    async with ServerProcess(settings=settings) as server:
        await server.start()
        async with HttpCaller(server.url, server.token("admin")) as caller:
            project = await caller.call("project_create", name="bench", init_git=False)

            async def spawn(count: int) -> None:
                spawned = await asyncio.gather(
                    *(
                        caller.call(
                            "session_spawn",
                            project_id=project["id"],
                            prompt="say hi",
                            new_session=True,
                        )
                        for _ in range(count)
                    )
                )
                for each in spawned:
                    await _turn(caller, each["session_id"])

            await spawn(10)  # whatever is made once is made now, and the SDK is imported
            await asyncio.to_thread(until_ok, int(server.url.split(":")[2].split("/")[0]), "/ready")
            before = _private_mb(server.pid)
            for _ in range(0, sessions, 10):
                await spawn(10)
            return (_private_mb(server.pid) - before) * 100 / sessions


async def with_broken(rounds: int) -> float:
    """Ratio of the processor seconds until all projects are listed, with and without broken ones."""
    async with ServerProcess() as server:
        await server.start()
        async with HttpCaller(server.url, server.token("admin")) as caller:
            for number in range(PROJECTS):
                made = await caller.call("project_create", name=f"p{number}", init_git=False)
                spawned = await caller.call(
                    "session_spawn", project_id=made["id"], prompt="say hi", new_session=True
                )
                await _turn(caller, spawned["session_id"])
        projects = await _listed(server)

        async def start() -> float:
            server.signal(signal.SIGTERM)
            await server.ended(DEADLINE)
            await server.start()
            broken = [each for each in await _listed(server) if each["problem"]]
            assert len(broken) == (len(BROKEN) if put else 0)
            return _processor(server.pid)

        put = False
        sound = statistics.median([await start() for _ in range(rounds)])
        server.signal(signal.SIGTERM)
        await server.ended(DEADLINE)
        for each, path in zip(projects, BROKEN, strict=False):
            place = server.home / path.format(each["id"], each["default_workspace_id"])
            place.rename(place.with_name(f"{place.name}.was"))
            place.write_text("no folder")
        put = True
        await server.start()
        return statistics.median([await start() for _ in range(rounds)]) / sound


async def _listed(server: ServerProcess) -> list[dict[str, Any]]:
    async with HttpCaller(server.url, server.token("admin")) as caller:
        return (await caller.call("project_list", limit=PROJECTS))["projects"]


async def _turn(caller: HttpCaller, session_id: str) -> None:
    since = -1
    while True:
        page = await caller.call(
            "session_events", session_id=session_id, since_index=since, wait_seconds=30
        )
        if any(event["type"] == "completion" for event in page["events"]):
            return
        since = page["events"][-1]["index"] if page["events"] else since


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=100)
    options = parser.parse_args()
    ours, bare = lives(options.rounds)
    us, floor = (Life(*map(statistics.median, zip(*each))) for each in (ours, bare))
    grown = asyncio.run(memory(options.sessions))
    broken = asyncio.run(with_broken(options.rounds))
    print(f"{'':34}{'ours':>8}{'floor':>8}{'ratio':>8}{'wanted':>8}")
    rows = [
        ("start to /health, seconds", us.health, floor.health, LIMITS["health seconds"]),
        ("  of which processor", us.processor, floor.processor, None),
        ("start to /ready, seconds", us.ready, None, None),
        ("idle SIGTERM to the end, seconds", us.stop, floor.stop, LIMITS["stop seconds"]),
        ("MB for 100 idle sessions", grown, None, LIMITS["MB per 100 sessions"]),
        ("5 of 20 projects broken, to none", broken, None, LIMITS["with broken projects"]),
    ]
    for name, value, least, wanted in rows:
        ratio = "" if not least else f"{value / least:.1f}"
        print(
            f"{name:34}{value:8.2f}{'' if least is None else f'{least:.2f}':>8}{ratio:>8}"
            f"{'' if wanted is None else f'{wanted:.1f}':>8}"
        )
    print(
        json.dumps(
            {"ours": us._asdict(), "floor": floor._asdict(), "mb_per_100": grown, "broken": broken}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
