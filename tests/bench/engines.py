"""What a container costs with us, beside the engine's own API in the same run.

    python -m tests.bench.engines [--engines docker,podman] [--rounds 15] [--no-bytecode] [-o json]

* a session in a container that runs, from `session_spawn` to its first event and to its agent's first
  word: beside a bare `exec` of the same program by the engine, to its first line;
* a warm turn: a message to a session that waits, to its agent's word;
* a byte there and back through `cat`: by an attached stream, and by the engine's hijacked one;
* twenty sessions at once: until each agent has spoken, beside twenty bare execs;
* a project and its container until agents can start in it: beside a bare create and start.

With `--no-bytecode` the image is as official images of Python are: programs compile what they import.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from oubliette.runtime.containers.docker.client import Engine
from oubliette.testing.host_image import ensure_image
from oubliette.testing.server import ServerProcess
from tests import requirements
from tests.bench.raw_exec import raw_exec
from tests.callers import HttpCaller
from tests.conformance.engines import ENGINES, Bench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

PROGRAM = ["python3", "-I", "-S", "/opt/oubliette/oubliette.pyz", "scripted-agent"]
AT_ONCE = 20
PINGS = 1000
TURNS = 30
LONGEST = 120.0  # seconds for one of all these

LIMITS = {"spawn_ratio": 1.0, "ping_ratio": 1.5, "project_ratio": 1.2, "turn_ms": 12.0}
"""Ours at most: beside the engine's own, or in milliseconds."""


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    async with asyncio.timeout(LONGEST):
        await work()
    return (time.perf_counter() - began) * 1000


class House:
    """A server on an engine, a caller, a project whose container runs, and the engine itself."""

    def __init__(self, flavour: str, image: str, server: ServerProcess, caller: HttpCaller) -> None:
        self.flavour = flavour
        self.image = image
        self.server = server
        self.caller = caller
        self.api = Engine(flavour).connect()  # type: ignore[arg-type]
        self.project = ""
        self.container = ""
        self.first = 0.0
        """When the first event of the latest session came."""
        self._count = 0

    def containers(self) -> list[str]:
        label = f"dev.oubliette.instance={self.server.instance()}"
        return [each["Id"] for each in self.api.containers(all=True, filters={"label": [label]})]

    async def open(self) -> None:
        self.project, _ = await self.new_project()
        (self.container,) = self.containers()
        await self.spawn()

    async def new_project(self) -> tuple[str, str]:
        self._count += 1
        made = await self.caller.call("project_create", name=f"p{self._count}", init_git=False)
        started = await self.caller.call("container_start", project_id=made["id"])
        return made["id"], started["container_id"]

    async def spawn(self) -> str:
        """A session until its agent has said its word."""
        place = len(self.caller.events)
        spawned = await self.caller.call(
            "session_spawn", project_id=self.project, prompt="say hi",
            context=self.caller.context, new_session=True,
        )  # fmt: skip
        session = spawned["session_id"]
        await self.caller.event(after=place, session_id=session, timeout=LONGEST)
        self.first = time.perf_counter()
        await self.caller.event("message", after=place, session_id=session, timeout=LONGEST)
        return session

    async def end(self, sessions: list[str]) -> None:
        await asyncio.gather(
            *(self.caller.call("session_end", session_id=each) for each in sessions)
        )

    async def bare(self) -> None:
        """The same program by the engine, until its first line; as the user of the container."""
        async with raw_exec(self.flavour, self.container, PROGRAM) as program:
            await program.line()
            self._said = time.perf_counter()

    async def bare_ms(self) -> float:
        began = time.perf_counter()
        async with asyncio.timeout(LONGEST):
            await self.bare()
        return (self._said - began) * 1000

    def bare_container(self) -> float:
        """Create and start a container of the same image that does nothing; milliseconds."""
        # Podman raises limits unasked, which fails where the machine's own are lower.
        limits = [
            {"Name": name, "Soft": most, "Hard": most}
            for name, most in (("nofile", 1024), ("nproc", 1024))
        ]
        began = time.perf_counter()
        made = self.api.create_container(
            self.image,
            ["sleep", "1000"],
            labels={"dev.oubliette.bench": "1"},
            host_config=self.api.create_host_config(ulimits=limits),
        )
        try:
            self.api.start(made["Id"])
            return (time.perf_counter() - began) * 1000
        finally:
            self.api.remove_container(made["Id"], force=True, v=True)


@contextlib.asynccontextmanager
async def house(flavour: str, *, bytecode: bool = True) -> AsyncIterator[House]:
    image = await asyncio.to_thread(ensure_image, flavour, bytecode=bytecode)
    settings = {
        "containers.runtime": flavour,
        "containers.image": image,
        "sessions.max_live_per_project": 500,
        "callers.calls_per_second": 10_000,
        "callers.calls_burst": 10_000,
    }
    async with ServerProcess(settings=settings) as server:
        await server.start()
        caller = HttpCaller(server.url, server.token("admin"), caller_id="bench")
        made = House(flavour, image, server, caller)
        try:
            async with caller:
                await caller.listen()
                await made.open()
                yield made
        finally:
            await server.kill()
            for container in made.containers():
                made.api.remove_container(container, force=True, v=True)
            made.api.close()


async def spawns(at: House, rounds: int) -> dict[str, float]:
    first, ours, bare, sessions = [], [], [], []
    for _ in range(rounds):
        bare.append(await at.bare_ms())
        began = time.perf_counter()
        sessions.append(await at.spawn())
        ours.append((time.perf_counter() - began) * 1000)
        first.append((at.first - began) * 1000)
    await at.end(sessions)
    return figures("first", first, bare) | figures("spawn", ours, bare)


async def turns(at: House) -> dict[str, float]:
    """Warm ones: the agent waits in its container."""
    session = await at.spawn()
    took = []
    for _ in range(TURNS):
        place = len(at.caller.events)
        began = time.perf_counter()
        await at.caller.call("session_message", session_id=session, message="say hi")
        await at.caller.event("message", after=place, session_id=session, timeout=LONGEST)
        took.append((time.perf_counter() - began) * 1000)
    await at.end([session])
    return {"turn_ms": round(statistics.median(took), 2)}


async def at_once(at: House, rounds: int) -> dict[str, float]:
    ours, bare = [], []
    for _ in range(max(1, rounds // 5)):
        bare.append(await timed(lambda: asyncio.gather(*(at.bare() for _ in range(AT_ONCE)))))
        began = time.perf_counter()
        sessions = await asyncio.gather(*(at.spawn() for _ in range(AT_ONCE)))
        ours.append((time.perf_counter() - began) * 1000)
        await at.end(list(sessions))
    return figures("twenty", ours, bare)


async def projects(at: House, rounds: int) -> dict[str, float]:
    ours, bare = [], []
    for _ in range(max(3, rounds // 3)):
        bare.append(await asyncio.to_thread(at.bare_container))
        began = time.perf_counter()
        project, _ = await at.new_project()
        ours.append((time.perf_counter() - began) * 1000)
        await at.caller.call("project_delete", project_id=project)
    return figures("project", ours, bare)


async def pings(flavour: str) -> dict[str, float]:
    """A byte through `cat`, in the same container, by both ways in turns."""
    engine = next(engine for engine in ENGINES if engine.name == flavour)
    bench = Bench(engine)
    ours, bare = [], []
    try:
        running = await bench.start()
        process = running.process("cat")
        await running.link.start(process)
        handle = str(running.info.handle["container"]) if "container" in running.info.handle else ""
        name = handle or f"oubliette-{running.spec.id}"
        async with (
            await running.link.attach(process.proc) as stream,
            raw_exec(flavour, name, ["cat"]) as raw,
        ):
            for number in range(1, PINGS + 1):
                began = time.perf_counter()
                await stream.write(number, b"x")
                while getattr(await stream.read(), "data", None) is None:
                    pass
                ours.append((time.perf_counter() - began) * 1000)
                began = time.perf_counter()
                raw.write(b"x")
                await raw.read()
                bare.append((time.perf_counter() - began) * 1000)
    finally:
        await bench.aclose()
    return figures("ping", ours, bare)


def figures(name: str, ours: list[float], bare: list[float]) -> dict[str, float]:
    """Medians in milliseconds, and how many times the engine's own is ours."""
    mine, floor = statistics.median(ours), statistics.median(bare)
    return {
        f"{name}_ms": round(mine, 2),
        f"{name}_bare_ms": round(floor, 2),
        f"{name}_ratio": round(mine / floor, 2),
    }


async def measure(flavour: str, rounds: int, *, bytecode: bool) -> dict[str, float]:
    async with house(flavour, bytecode=bytecode) as at:
        found = await spawns(at, rounds)
        found |= await turns(at)
        found |= await at_once(at, rounds)
        found |= await projects(at, rounds)
    return found | await pings(flavour)


NAMES = {
    "first": "a session in a running container, to its first event | bare exec, to a line",
    "spawn": "a session in a running container, to its agent's first word | bare exec",
    "twenty": f"{AT_ONCE} sessions at once, until each has spoken | {AT_ONCE} bare execs",
    "ping": "a byte there and back through cat, attached | the engine's stream",
    "project": "a project and its container, ready for agents | bare create and start",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", default="docker,podman")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--bytecode", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("-o", dest="output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    kept = True
    for flavour in options.engines.split(","):
        if (reason := requirements.missing(flavour)) is not None:
            print(f"{flavour}: left out, {reason}")
            continue
        found = asyncio.run(measure(flavour, options.rounds, bytecode=options.bytecode))
        within = {name: found[name] <= limit for name, limit in LIMITS.items()}
        kept &= all(within.values())
        if options.output == "json":
            print(json.dumps({"bench": "engines", "engine": flavour, **found, "kept": within}))
            continue
        for name, what in NAMES.items():
            ours, bare, ratio = (found[f"{name}_{part}"] for part in ("ms", "bare_ms", "ratio"))
            print(f"{flavour:7} {what}: {ours:.2f} | {bare:.2f} ms, {ratio:.2f} x", flush=True)
        print(
            f"{flavour:7} a warm turn, to its agent's word: {found['turn_ms']:.2f} ms", flush=True
        )
        for name, limit in LIMITS.items():
            print(
                f"{flavour:7} {name}: at most {limit:g}, {'kept' if within[name] else 'NOT KEPT'}"
            )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
