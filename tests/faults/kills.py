"""Kill a server at random moments under a mixed load, and look at what is left of it.

    python -m tests.faults.kills --kills 100 --runtime process --seed 7

`--runtime` is `process` (in a sandbox), `best-effort` (without one), `docker` or `podman`. The same
seed has the same kills and jobs; what the machine makes of them differs. Exits with 1 when a session
failed, a promise was broken or anything was left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.runtime.containers.base import LABEL_INSTANCE
from oubliette.runtime.containers.docker.address import FLAVOURS
from oubliette.runtime.containers.process import procfs
from oubliette.testing.fork_server import Zygote
from oubliette.testing.invariants import InvariantBroken, check_home
from oubliette.testing.server import ServerProcess
from tests.consent import delete_with_all
from tests.faults.history import BROKEN
from tests.faults.kill_jobs import RUNS, Insistent, Jobs

if TYPE_CHECKING:
    from collections.abc import Mapping

KILLS_A_HOME: Final = 10
AT_ONCE: Final = 5
WITHIN: Final = (0.05, 1.6)  # seconds from a server's start to its kill
STARTING: Final = 0.2  # how many of the kills come while a server starts
TOPS: Final = ("projects", "homes", "roots", "config/projects", "spool", "logs")


class Outcome(msgspec.Struct):
    """What came of one home, or of all of them."""

    kills: int = 0
    sessions: int = 0
    events: int = 0
    jobs: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    wrong: list[str] = msgspec.field(default_factory=list[str])

    def add(self, other: Outcome) -> None:
        """Count another one in."""
        self.kills += other.kills
        self.sessions += other.sessions
        self.events += other.events
        self.wrong += other.wrong
        for kind, number in other.jobs.items():
            self.jobs[kind] = self.jobs.get(kind, 0) + number


async def one_home(
    server: ServerProcess,
    *,
    kills: int,
    chance: random.Random,
    within: tuple[float, float] = WITHIN,
) -> Outcome:
    """Kill the servers of one home so many times; then let all come to its end, and look."""
    await server.start()
    caller = Insistent(server.url, server.token("write"), chance)
    try:
        await caller.come_back()
        project = await caller.insist("project_create", name="one", init_git=False)
        jobs = Jobs(caller, project, chance)
        more = True
        number = 0

        async def work() -> None:
            nonlocal number
            while more:
                number += 1
                kind = chance.choice(list(jobs.kinds))
                await jobs.run(kind, f"{kind}{number}")

        workers = [asyncio.create_task(work()) for _ in range(AT_ONCE)]
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(*within))
            caller.up.clear()
            await server.kill()
            while chance.random() < STARTING:
                await _killed_while_it_starts(server, chance.uniform(0.0, 0.6))
            await server.start()
            while True:
                with contextlib.suppress(*BROKEN):
                    await caller.come_back()
                    break
        more = False
        await asyncio.gather(*workers)
        await _end_all(server, caller, jobs)
        return _look(server, jobs, kills)
    finally:
        await caller.__aexit__()


async def _killed_while_it_starts(server: ServerProcess, after: float) -> None:
    starting = asyncio.create_task(server.start())
    await asyncio.wait({starting}, timeout=after)
    if starting.done():
        await server.kill()
        return
    server.signal(signal.SIGKILL)
    await asyncio.gather(starting, return_exceptions=True)
    await server.kill()


async def _end_all(server: ServerProcess, caller: Insistent, jobs: Jobs) -> None:
    """End what lives and delete what is there, then stop; what refuses is wrong."""
    for (session,) in server.query("SELECT id FROM sessions WHERE live = 1"):
        await caller.insist("session_end", session_id=session)
    if server.query("SELECT id FROM sessions WHERE live = 1"):
        jobs.wrong.append("sessions live after everything was ended")
    agents = [a for (s,) in server.query("SELECT id FROM sessions") for a in server.agents(s)]
    if agents:
        jobs.wrong.append(f"agents live after everything was ended: {agents}")
    folder = server.home / "projects" / jobs.project["id"] / "workspaces"
    runs = [
        line
        for file in folder.glob(f"*/{RUNS}")
        for line in file.read_text(encoding="utf-8").split()
    ]
    twice = sorted({each for each in runs if runs.count(each) > 1})
    if twice:
        jobs.wrong.append(f"prompts that ran twice: {twice}")
    for (found,) in server.query("SELECT id FROM projects WHERE deleted_at IS NULL"):
        await delete_with_all(caller.insist, found)


def _look(server: ServerProcess, jobs: Jobs, kills: int) -> Outcome:
    wrong = jobs.wrong
    rows = server.query("SELECT id, live, status, ended_by, data FROM sessions")
    for session, live, status, ended_by, data in rows:
        record = msgspec.json.decode(data)
        if status in {"failed", "timed_out"}:
            wrong.append(f"{session} {status}: {record['status_reason']} {_last(server, session)}")
        if session in jobs.ended and (live, ended_by) != (0, "session_end"):
            wrong.append(f"{session}: its end was answered, and it is {status} by {ended_by}")
    for found, gone in server.query("SELECT id, deleted_at FROM projects"):
        if found in jobs.deleted and gone is None:
            wrong.append(f"{found}: its deletion was answered, and it is there")
    events = 0
    try:
        events = check_home(server.home).events
    except InvariantBroken as error:
        wrong.append(str(error))
    return Outcome(kills=kills, sessions=len(rows), events=events, jobs=jobs.done, wrong=wrong)


def _last(server: ServerProcess, session: str) -> list[Any]:
    sql = "SELECT type, data FROM events WHERE session_id = ? ORDER BY idx DESC LIMIT 4"
    return [(kind, str(data)[:200]) for kind, data in server.query(sql, session)]


def left_on_disk(server: ServerProcess) -> list[str]:
    """What lies in the home, and in the runtime folder, once all is deleted and it has stopped."""
    found = [
        str(path.relative_to(server.home))
        for top in TOPS
        for path in (server.home / top).rglob("*")
        if not path.name.endswith(".stderr.log")  # kept with the session's log
    ]
    for base in (server.home / "r").iterdir():
        found += [str(path.relative_to(server.home)) for path in base.iterdir()]
    return found


def left_running(server: ServerProcess) -> list[str]:
    """Processes of this instance, and containers of an engine."""
    instance = server.instance()
    home = str(server.home)
    found = [f"container {each}" for each in server.containers()]
    if server.engine in FLAVOURS:  # those too that never ran
        with server.api() as api:
            label = f"{LABEL_INSTANCE}={instance}"
            listed = api.containers(all=True, filters={"label": [label]})
            found += [f"container {each['Names']} {each['State']}" for each in listed]
    for pid in procfs.pids():
        arguments = procfs.command_line(pid)
        named = any(instance in each or home in each for each in arguments)
        if pid != server.pid and procfs.identify(pid) is not None and named:
            found.append(f"{pid} {' '.join(arguments)[:200]}")
    return found


async def campaign(
    settings: Mapping[str, object], *, kills: int, seed: int, kills_a_home: int = KILLS_A_HOME
) -> Outcome:
    """Homes with `kills` kills together; each is looked at after its orderly stop."""
    total = Outcome()
    with Zygote() as zygote:
        for home in range(-(-kills // kills_a_home)):
            part = min(kills_a_home, kills - home * kills_a_home)
            began = time.monotonic()
            outcome = await stopped_home(
                zygote, settings, kills=part, chance=random.Random(f"{seed}/{home}")
            )
            total.add(outcome)
            print(
                f"home {home}: {part} kills, {outcome.sessions} sessions, {outcome.events} events,"
                f" {len(outcome.wrong)} wrong, {time.monotonic() - began:.0f} s",
                flush=True,
            )
            for each in outcome.wrong:
                print(f"  {each}", flush=True)
    return total


async def stopped_home(
    zygote: Zygote, settings: Mapping[str, object], *, kills: int, chance: random.Random
) -> Outcome:
    """`one_home`, stopped in order, and what is left of it then."""
    async with ServerProcess(
        zygote=zygote,
        settings={
            "sessions.max_live_per_project": 100,
            "sessions.caller_tool_timeout_seconds": 100,
            **settings,
            "server.on_stop": "end",
        },
    ) as server:
        try:
            outcome = await one_home(server, kills=kills, chance=chance)
            if (code := await server.stop()) != 0:
                outcome.wrong.append(f"the stop ended with {code}")
            outcome.wrong += [f"left on disk: {each}" for each in left_on_disk(server)]
            outcome.wrong += [f"left running: {each}" for each in left_running(server)]
        except BaseException:
            print(server.log()[-5000:])
            raise
        if outcome.wrong:
            print(server.log()[-20_000:], file=sys.stderr)
        return outcome


def settings_of(runtime: str) -> dict[str, object]:
    """The settings of a server on this runtime."""
    from tests.faults.conftest import settings_of as on_engine

    if runtime == "best-effort":
        return {"process.sandbox": "best-effort"}
    return {"process.sandbox": "bubblewrap"} if runtime == "process" else on_engine(runtime)


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kills")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--runtime", default="process")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    print(f"{given.kills} kills, {given.runtime}, seed {given.seed}", flush=True)
    total = asyncio.run(campaign(settings_of(given.runtime), kills=given.kills, seed=given.seed))
    print(
        f"{total.kills} kills, {total.sessions} sessions, {total.events} events,"
        f" jobs {total.jobs}; {len(total.wrong)} wrong"
    )
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
