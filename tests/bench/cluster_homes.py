"""What it costs that something has its home on another node, beside the same where its home is.

    python -m tests.bench.cluster_homes [--rounds 5] [--starts 10] [--megabytes 32]

Two nodes on Ray, each a process of its own, with real agents. Two things take turns:

* starts of sessions by an agent, in a tree that its own node counts, and in one whose root is on
  the other node, which counts it. Times are those of the agent, from its call to its answer;
* a fetch of a project by git, and a download from an open port of a container, of bytes that cannot
  be compressed, from the node that has them and through the other one.

Ratios are medians over the rounds: of the times of a start, and of the speeds of a stream.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx2

import oubliette
from tests.bench.relay import middle
from tests.bench.servers_on_ray import ServersOnRay
from tests.git_hosts import ENVIRONMENT
from tests.system.test_ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

KEY: Final[dict[str, Any]] = {"api_key_scope": "write", "api_key_project": "*"}
MEGABYTE: Final = 1_000_000
TURN_SECONDS: Final = 300.0
_SETTINGS: Final = {
    "agents.default": "scripted",
    "snapshots.mode": "on",
    "snapshots.max_file_bytes": 1_000_000_000,
    "sessions.max_live_per_project": 1000,
    "trees.max_agents": 10_000,
    "trees.max_agents_at_once": 10_000,
    "callers.max_calls_in_flight": 1000,
    "callers.calls_per_second": 100_000,  # what is measured is not the limit
    "callers.calls_burst": 100_000,
}


# ------------------------------------------------------------ starts
def spawn(project_id: str, prompt: str) -> str:
    """The directive for a start."""
    given = {"project_id": project_id, "prompt": prompt, "new_session": True, **KEY}
    return f"call oubliette_session_spawn {json.dumps(given)}"


async def answer(ob: oubliette.Oubliette, session_id: str) -> Any:
    """What the agent of a session has answered at the end of its turn, as JSON."""
    seen: dict[str, Any] = {"last_index": -1, "completed": False, "failed": False}
    async with asyncio.timeout(TURN_SECONDS):
        while not (seen["completed"] or seen["failed"]):
            since = seen["last_index"]
            seen = await ob.call(
                "session_events", session_id=session_id, since_index=since, wait_seconds=30
            )
    return json.loads(seen["final_response"])


async def starts(ob: oubliette.Oubliette, root: str, here: str, count: int) -> list[float]:
    """Milliseconds of starts in a project, by an agent in it.

    Args:
        ob: A program.
        root: Project of the root of its tree: the same, or one on another node.
        here: The project.
        count: How many.
    """
    repeated = f"repeat {count} {spawn(here, 'say x')}"
    prompt = repeated if root == here else spawn(here, repeated)
    made = await ob.call("session_spawn", project_id=root, prompt=prompt, new_session=True, **KEY)
    found = await answer(ob, made["session_id"])
    if root != here:
        found = await answer(ob, found["structured"]["session_id"])
    await ob.call("session_end", session_id=made["session_id"], tree=True)
    if found["errors"]:
        raise RuntimeError(f"{found['errors']} starts failed")
    return list(found["elapsed_ms"])


# ------------------------------------------------------------ streams
async def fetch(url: str, key: str, project_id: str, size: int) -> float:
    """Seconds of a fetch of all snapshots of a project."""
    address = f"http://oub:{key}@{urlsplit(url).netloc}/git/{project_id}"
    with tempfile.TemporaryDirectory(prefix="obf", dir="/tmp") as folder:
        await _git(folder, "init", "--quiet", "--bare")
        began = time.perf_counter()
        await _git(folder, "fetch", "-q", address, "refs/oubliette/*:refs/oubliette/*")
        seconds = time.perf_counter() - began
        files = [each for each in Path(folder, "objects").rglob("*") if each.is_file()]
        if sum(each.stat().st_size for each in files) < size:
            raise RuntimeError("the fetch has not all of the file")
    return seconds


async def _git(folder: str, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "git", *arguments, cwd=folder, env={**ENVIRONMENT, "GIT_TERMINAL_PROMPT": "0"}
    )
    if await process.wait() != 0:
        raise RuntimeError(f"git {arguments[0]} failed")


async def download(url: str, key: str, opened: dict[str, Any], size: int) -> float:
    """Seconds of a download from an open port."""
    at = urlsplit(url)
    headers = {
        "host": f"{urlsplit(opened['address']).hostname}:{at.port}",
        "authorization": f"Bearer {key}",
    }
    async with httpx2.AsyncClient(headers=headers, timeout=60.0) as client:
        began = time.perf_counter()
        async with client.stream("GET", f"http://{at.netloc}/large") as response:
            response.raise_for_status()
            got = 0
            async for piece in response.aiter_bytes():
                got += len(piece)
        seconds = time.perf_counter() - began
    if got != size:
        raise RuntimeError(f"{got} bytes of {size}")
    return seconds


@contextlib.asynccontextmanager
async def site(
    ob: oubliette.Oubliette, project: oubliette.Project, size: int
) -> AsyncIterator[dict[str, Any]]:
    """Have a turn store a large file, and a program serve it; its open port."""
    session = await project.spawn("say ready")
    await (await session.send(f"exec head -c {size} /dev/urandom > large"))
    port = free_port()
    await project.exec("mkfifo ready")
    serving = asyncio.create_task(
        project.exec(f"python3 -u -m http.server {port} > ready", timeout=3600)
    )
    try:
        await project.exec("head -1 ready")
        yield await ob.call("port_open", session_id=session.id, port=port)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


# ------------------------------------------------------------ all
class Found:
    """What was found in each round."""

    def __init__(self) -> None:
        self.starts: dict[str, list[list[float]]] = {"here": [], "there": []}
        """Where the tree is counted → milliseconds."""
        self.seconds: dict[str, list[float]] = {}
        """Kind and place of a stream → seconds."""


async def measure(cluster: ServersOnRay, rounds: int, count: int, size: int) -> Found:
    """Do all in turns; the first round, which loads what is loaded late, is not counted."""
    found, key = Found(), cluster.key()
    home, other = cluster.names
    async with oubliette.connect(cluster.urls[home], key) as ob:
        made = {
            name: await ob.call(
                "project_create", name=f"bench-{name}", placement={"labels": {"name": name}}
            )
            for name in cluster.names
        }
        here, there = made[home]["id"], made[other]["id"]
        project = await ob.project(f"bench-{home}")
        async with site(ob, project, size) as opened:
            streams: dict[str, Callable[[str], Coroutine[Any, Any, float]]] = {
                "fetch": lambda url: fetch(url, key, here, size),
                "port": lambda url: download(url, key, opened, size),
            }
            for number in range(rounds + 1):
                for place, root in (("here", here), ("there", there)):
                    times = await starts(ob, root, here, count)
                    if number:
                        found.starts[place].append(times)
                for kind, measured in streams.items():
                    for place, node in (("direct", home), ("across", other)):
                        seconds = await measured(cluster.urls[node])
                        if number:
                            found.seconds.setdefault(f"{kind}_{place}", []).append(seconds)
    return found


def report(found: Found, size: int) -> dict[str, float]:
    """Medians, and their ratios."""
    told: dict[str, float] = {}
    medians: dict[str, list[float]] = {}
    for place, runs in found.starts.items():
        medians[place] = [middle(times) for times in runs]
        told[f"start_counted_{place}_ms"] = statistics.median(medians[place])
    told["start_ratio"] = _ratio(medians["there"], medians["here"])
    for kind in ("fetch", "port"):
        for place in ("direct", "across"):
            seconds = statistics.median(found.seconds[f"{kind}_{place}"])
            told[f"{kind}_{place}_mb_s"] = size / MEGABYTE / seconds
        direct, across = found.seconds[f"{kind}_direct"], found.seconds[f"{kind}_across"]
        told[f"{kind}_ratio"] = _ratio(direct, across)
    return {name: round(value, 2) for name, value in told.items()}


def _ratio(these: list[float], those: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(these, those, strict=True))


def main(arguments: list[str]) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=32)
    options = parser.parse_args(arguments)
    if shutil.which("git") is None:
        print("needs git")
        return 2
    size = options.megabytes * MEGABYTE
    with ServersOnRay(2, _SETTINGS) as cluster:
        figures = report(asyncio.run(measure(cluster, options.rounds, options.starts, size)), size)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
