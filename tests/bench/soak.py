"""What a server keeps of sessions that have ended: `python -m tests.bench.soak --sessions 2000`.

Each project gets callers of both generations and sessions of all sorts: turns, calls of the
callers' tools, maps, children, permissions, failures, agents that die. Then the sessions are ended
and cleaned up, and the project is deleted. After that nothing of it should be left in the server.

Printed are the server's memory (`Pss` and private MB, of /proc), and with `--census` what is alive
once garbage is collected (which the server would otherwise do when it comes to it).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oubliette.testing.server import ServerProcess
from tests.callers import HttpCaller, SdkCaller
from tests.consent import delete_with_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.callers import Mode

IN_PROJECT = 20  # sessions
AT_ONCE = 4
SETTINGS = {
    "sessions.max_live_per_project": 500,
    "callers.calls_per_second": 100_000,
    "callers.calls_burst": 100_000,
}
DEADLINE = 120.0  # seconds for a session
CALLERS: tuple[tuple[Any, Mode], ...] = (
    (HttpCaller, "auto"),
    (SdkCaller, "auto"),
    (HttpCaller, "legacy"),
    (SdkCaller, "legacy"),
)
"""Who asks for the sessions of a project: one after the other."""


def _call(tool: str, **arguments: Any) -> str:
    return f"call {tool} {json.dumps(arguments)}"


PROMPTS = {
    "say": "remember colour green\nsay hello\nemit 20 200",
    "calls": 'repeat 5 call soak_add {"a": 1, "b": 2}',
    "map": _call("session_map", messages=["say one", "fail no", "say three"], max_parallel=3),
    "child": _call("session_message", message='call soak_add {"a": 3, "b": 4}\nsay done'),
    "permission": "ask may I?\nask may I again?",
    "failing": "fail as asked",
    "crashing": "say before\ncrash 3",
    "wrong": 'call soak_wrong {}\ncall soak_missing {}\ncall session_message {"message": 7}',
}
AGAIN = "recall colour\nsay again"


class Load:
    """Sessions that come and go on one server."""

    def __init__(
        self,
        server: ServerProcess,
        prompts: Mapping[str, str] = PROMPTS,
        callers: Sequence[tuple[Any, Mode]] = CALLERS,
    ) -> None:
        self.server = server
        self.prompts = prompts
        self.callers = callers
        self.token = server.token("write")
        self.operator = HttpCaller(server.url, server.token("admin"), caller_id="operator")
        self.done: Counter[str] = Counter()
        """How many sessions of each kind, `turns` and `projects` have come and gone."""

    def _caller(self, number: int) -> Any:
        tools = {"add": lambda a, b: {"sum": a + b}, "wrong": lambda: 1 / 0}
        more: dict[str, Any] = {"caller_id": "soak", "tools": tools, "decide": lambda _: "allow"}
        cls, mode = self.callers[number % len(self.callers)]
        return cls(self.server.url, self.token, mode=mode, **more)

    async def project(self, number: int, sessions: int = IN_PROJECT) -> None:
        """A project's whole life, with this many sessions that somebody asked for."""
        async with self._caller(number) as caller:
            await caller.listen()
            project = await caller.call("project_create", name=f"soak {number}", init_git=False)
            few = asyncio.Semaphore(AT_ONCE)

            async def one(kind: str) -> None:
                async with few, asyncio.timeout(DEADLINE):
                    await self._session(caller, project["id"], kind)

            kinds = list(self.prompts)
            async with asyncio.TaskGroup() as group:
                for n in range(sessions):
                    group.create_task(one(kinds[n % len(kinds)]))
            await caller.call("session_cleanup", project_id=project["id"], max_age_hours=0)
            await delete_with_all(self.operator.call, project["id"])
            if isinstance(caller, HttpCaller) and not caller.modern:
                await caller.stop_listening()
                async with caller.http.request("DELETE") as answer:  # as the SDK's client does
                    await answer.body()
            self.done["projects"] += 1

    async def _session(self, caller: Any, project_id: str, kind: str) -> None:
        spawned = await caller.call(
            "session_spawn",
            project_id=project_id,
            prompt=self.prompts[kind],
            new_session=True,
            context=caller.context,
        )
        session_id = spawned["session_id"]
        page = await self._rests(caller, session_id)
        self.done["turns"] += 1
        if not page["failed"] and kind == "say":
            await caller.call("session_message", session_id=session_id, message=AGAIN)
            await self._rests(caller, session_id)
            self.done["turns"] += 1
        await caller.call("session_end", session_id=session_id, tree=True)
        self.done[kind] += 1

    @staticmethod
    async def _rests(caller: Any, session_id: str) -> dict[str, Any]:
        last = -1
        while True:
            page: dict[str, Any] = await caller.call(
                "session_events", session_id=session_id, since_index=last, wait_seconds=30
            )
            if page["completed"] or page["failed"]:
                return page
            last = page["last_index"]

    @property
    def sessions(self) -> int:
        """How many have come and gone, children aside."""
        return sum(self.done[kind] for kind in self.prompts)


def memory_of(pid: int) -> tuple[float, float]:
    """Proportional and private MB of a process."""
    sizes = {
        words[0]: int(words[1])
        for words in map(str.split, Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    }
    return sizes["Pss:"] / 1024, sum(v for k, v in sizes.items() if "Private_" in k) / 1024


def grown(before: Mapping[str, int], after: Mapping[str, int], least: int) -> dict[str, int]:
    """Class → how many more there are than before, the most first; fewer than `least` are left out."""
    more = Counter(after)
    more.subtract(before)
    return {name: count for name, count in more.most_common() if count >= least}


async def soak(options: argparse.Namespace) -> None:
    """Run the load and print what the server holds."""
    prompts = {kind: PROMPTS[kind] for kind in options.kinds}
    async with ServerProcess(settings=SETTINGS) as server:
        await server.start()
        load = Load(server, prompts)
        async with load.operator:
            began = time.monotonic()
            print(f"{'sessions':>9}{'turns':>7}{'minutes':>9}{'PSS':>9}{'private':>9}", flush=True)

            def row() -> None:
                pss, private = memory_of(server.pid)
                minutes = (time.monotonic() - began) / 60
                print(
                    f"{load.sessions:9d}{load.done['turns']:7d}{minutes:9.1f}"
                    f"{pss:9.1f}{private:9.1f}",
                    flush=True,
                )

            row()
            number = 0
            while load.sessions < options.warm:  # whatever is made once is made now
                await load.project(number)
                number += 1
            row()
            first = await server.census() if options.census else None
            every = options.every
            while load.sessions < options.sessions + options.warm:
                await load.project(number)
                number += 1
                if (load.sessions - options.warm) % every < IN_PROJECT:
                    row()
            await asyncio.sleep(options.rest)
            row()
            if first is not None:
                last = await server.census()
                row()
                print(f"blocks {first['blocks']} -> {last['blocks']}")
                print(f"garbage {last['garbage']}")
                for name, count in grown(first["alive"], last["alive"], options.least).items():
                    print(f"{count:+8d} {name}")
            if options.log:
                Path(options.log).write_text(server.log())


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--warm", type=int, default=40, help="sessions before the first look")
    parser.add_argument("--every", type=int, default=250)
    parser.add_argument("--rest", type=float, default=2.0, help="seconds before the last look")
    parser.add_argument("--census", action="store_true")
    parser.add_argument("--least", type=int, default=5, help="of a class, to be told of")
    parser.add_argument("--kinds", nargs="*", default=list(PROMPTS))
    parser.add_argument("--log", help="where to keep the server's log")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(soak(parser.parse_args(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
