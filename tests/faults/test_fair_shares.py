"""One tenant's calls while others take all that they can get."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.incontainer import wire
from oubliette.testing.server import ServerProcess
from tests.callers import HttpCaller, ToolFailed
from tests.faults import attackers
from tests.http_client import HttpError
from tests.system.site import Site
from tests.system.wire_client import place

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.system.site import Agent

pytestmark = [pytest.mark.anyio, pytest.mark.whole, pytest.mark.timeout(240)]

CALLS = 33  # of each of three kinds
TIMES = 3  # that a call may take as long as it does when nobody else is there
FLOORS = (0.05, 2.0)
"""Seconds of the server that a median and a 95th percentile may take in any case: its work is
slower where other programs use the processor's caches, and a collection of garbage is long."""

Costs = dict[str, tuple[float, float]]
"""Kind of call → median and 95th percentile."""


def spent(server: ServerProcess) -> float:
    """Processor time of the server, in seconds.

    What it has spent between a request and its answer is how long its client would have waited on
    a machine with nothing else to do: a busy one changes nothing.
    """
    return time.clock_gettime(~server.pid << 3 | 2)  # CPUCLOCK_SCHED, see clock_getcpuclockid(3)


class Victim:
    """A tenant who wants no more than its own answers."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self._asked: list[float] = []
        self.caller = HttpCaller(
            server.url, server.token("write"), caller_id="shop", tools={"add": self._add}
        )

    def _add(self, a: int, b: int) -> int:
        self._asked.append(spent(self.server))
        return a + b

    async def _timed(self, tool: str, **arguments: Any) -> list[float]:
        found: list[float] = []
        for _ in range(CALLS):
            began = spent(self.server)
            await self.caller.call(tool, **arguments)
            found.append(spent(self.server) - began)
        return found

    async def costs(self, agent: Agent) -> Costs:
        """Median and 95th percentile of what the server spends until a call is answered."""
        self._asked.clear()
        answered = await agent.ask(f'repeat {CALLS} call shop_add {{"a": 1, "b": 2}}', timeout=60)
        assert answered["errors"] == 0
        every = {
            "caller's tool": [b - a for a, b in itertools.pairwise(self._asked)],
            "project_list": await self._timed("project_list"),
            "session_get": await self._timed("session_get", session_id=agent.session_id),
        }
        return {
            name: (statistics.median(found), statistics.quantiles(found, n=20)[-1])
            for name, found in every.items()
        }


@contextlib.asynccontextmanager
async def attacker(kind: str, port: str, *more: str) -> AsyncGenerator[None]:
    """A process that attacks meanwhile."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.attackers", kind, port, *more,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            await process.stdout.readline()
        yield
        process.stdin.close()
        async with asyncio.timeout(20):
            told = json.loads(await process.stdout.readline())
        print(kind, told)
        assert not told["failed"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Hostile:
    """A tenant whose agents do their worst, in a project of its own."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.caller = HttpCaller(
            site.server.url,
            site.server.token("write"),
            caller_id="mallory",
            tools={"wait": lambda x: x},
            answers=False,
        )

    async def begin(self, port: str) -> Agent:
        """Set two agents to work; the one that writes."""
        server, lower = self.site.server, f"exec renice {attackers.NICE} $PPID"
        await self.caller.listen()
        project = (await self.site.new_project())["id"]
        writes = await self.site.spawn(self.caller, lower, project_id=project)
        asks = await self.site.spawn(self.caller, lower, project_id=project)
        await writes.turn()
        await asks.turn()
        session, socket = place(self.site, asks.session_id)
        guest = server.containers()[str(session.container_id)]
        os.setpriority(os.PRIO_PROCESS, guest.pid, attackers.NICE)
        header = wire.Downstream(session.project_id, session.id, session.pairing_secret).line()
        (folder,) = (server.home / "projects" / project / "workspaces").iterdir()
        self.done = folder / "done.json"
        (folder / "flood.py").write_text(attackers.FLOOD)
        relay = "/mcp/relay.sock" if server.sandboxed else str(socket)
        await asks.say(f"exec python3 flood.py '{header.decode().strip()}' {port} {relay}")
        output = "emit 20000 200\nexec head -c 250000 /dev/zero | tr '\\0' a\nstderr 100000\n"
        await writes.say(output * 500)
        return writes


async def test_calls_of_one_tenant_are_served_while_others_take_all_they_can_get(zygote) -> None:
    """An agent, a key that may read and a process without one, all at once."""
    async with ServerProcess(zygote=zygote) as server:
        await server.start()
        port = server.url.split(":")[2].split("/")[0]
        site = Site(server)
        victim, hostile = Victim(server), Hostile(site)
        async with site.eyes, victim.caller, hostile.caller, contextlib.AsyncExitStack() as attack:
            await site.open()
            await victim.caller.listen()
            agent = await site.spawn(victim.caller, "say here")
            await agent.turn()
            quiet = await victim.costs(agent)
            writes = await hostile.begin(port)
            key = server.token("read")
            await attack.enter_async_context(attacker("reader", port, key, writes.session_id))
            await attack.enter_async_context(attacker("stranger", port))
            attacked = await victim.costs(agent)
            print("agent", hostile.done.read_text())
    assert not slower(quiet, attacked)


async def test_calls_of_one_tenant_are_served_while_the_actors_of_another_fail(zygote) -> None:
    """All of its projects, again and again, as they start and at work; then it is served too."""
    async with ServerProcess(zygote=zygote) as server:
        await server.start()
        site, victim, other = Site(server), Victim(server), Unlucky(server)
        async with site.eyes, victim.caller, other.caller:
            await site.open()
            await victim.caller.listen()
            await other.caller.listen()
            agent = await site.spawn(victim.caller, "say here")
            await agent.turn()
            quiet = await victim.costs(agent)
            projects = [(await site.new_project())["id"] for _ in range(10)]
            for project in projects[:3]:
                prompt = 'repeat 10000 call other_wait {"x": 1}'
                await site.spawn(other.caller, prompt, project_id=project)
            using = asyncio.gather(*(other.use(each) for each in projects * 2))
            failures = 0
            async with asyncio.timeout(120):
                while failures < 200:
                    fails = f"fails {' '.join(projects)}"
                    failures = (await server.arm(fails))["failures"]
                    assert not slower(quiet, await victim.costs(agent), (0.2, 0.5))
            await server.arm("fails")
            using.cancel()
            await asyncio.gather(using, return_exceptions=True)
            async with asyncio.timeout(60):
                for project in projects:
                    await other.served(site, project)


class Unlucky:
    """A tenant whose actors fail."""

    def __init__(self, server: ServerProcess) -> None:
        self.caller = HttpCaller(
            server.url, server.token("write"), caller_id="other", tools={"wait": lambda x: x}
        )

    async def use(self, project: str) -> None:
        """Ask for sessions again and again."""
        while True:
            with contextlib.suppress(ToolFailed, HttpError):
                await self.caller.call("session_spawn", project_id=project, prompt="say here")
            await asyncio.sleep(0)

    async def served(self, site: Site, project: str) -> None:
        """Use the project until its parts have been restarted, as a client is told to do."""
        while True:
            with contextlib.suppress(ToolFailed):
                found = await self.caller.call("session_list", project_id=project)
                for session in found["sessions"]:
                    await self.caller.call("session_end", session_id=session["session_id"])
                again = await site.spawn(
                    self.caller, 'call other_wait {"x": 1}', project_id=project
                )
                assert (await again.outcome())["text"] == "1"
                return
            await asyncio.sleep(0.2)


def slower(quiet: Costs, now: Costs, floors: tuple[float, float] = FLOORS) -> dict[str, Any]:
    """The kinds of calls that are served more slowly than they may be."""
    for name in quiet:
        print(name, *(f"{1000 * each:.1f} ms" for each in (*quiet[name], *now[name])))
    return {
        name: (quiet[name], now[name])
        for name in quiet
        if any(
            after > max(floor, TIMES * before)
            for floor, before, after in zip(floors, quiet[name], now[name], strict=True)
        )
    }
