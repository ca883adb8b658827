"""Kill a program that makes refunds at random moments, and look whether each was made once.

    python -m tests.faults.shop_kills --door embedded --kills 50 --seed 7

`--door` is `embedded` (program and system are one process, and die together) or `connected` (either
the program or its server is killed). The same seed has the same moments; what the machine makes of
them differs. Exits with 1 when something was done twice or not at all, or anything was left.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from oubliette.testing.server import ServerProcess
from tests.callers import TOOL_REQUEST
from tests.faults.kills import left_on_disk, left_running
from tests.faults.shop_program import CALLS, order

if TYPE_CHECKING:
    from oubliette.testing.fork_server import Zygote

DOORS: Final = ("embedded", "connected")
POINTS: Final = ("before_commit", "after_commit", "before_answer", "after_answer")
"""Moments between doing and answering, each a failpoint of the caller."""
AT_POINT: Final = 0.6  # how many kills are at one of them; the others are at any moment
STARTING: Final = 0.2  # how many of the others are while the program starts
SERVERS: Final = 0.5  # how many kills are of the server, where it is another process
POINT_SECONDS: Final = 10.0
WITHIN: Final = (0.02, 1.0)  # seconds from ready to a kill
START_SECONDS: Final = 60.0
FINISH_SECONDS: Final = 120.0
SETTINGS: Final = {
    "agents.default": "scripted",
    "containers.orphan_grace_seconds": 120.0,
    "sessions.max_live_per_project": 100,
    "sessions.caller_tool_timeout_seconds": 100,
}
ROOT: Final = Path(__file__).resolve().parents[2]


class Program:
    """A process of a program of these tests, which prints lines of JSON."""

    def __init__(self, module: str, spec: Path, log: Path) -> None:
        self._module = module
        self._spec = spec
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.wrong: list[str] = []

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self, failpoints: str = "") -> None:
        """Start it; it is not ready yet."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OUBLIETTE_")}
        environment |= {"OUBLIETTE_FAILPOINTS": failpoints, "PYTHONPATH": str(ROOT)}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"tests.faults.{self._module}", str(self._spec),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                cwd=ROOT, env=environment,
            )  # fmt: skip

    async def next(self) -> dict[str, Any] | None:
        """Read the next line; None at the end."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        return json.loads(line) if line else None

    async def says(self, word: str) -> bool:
        """Read until it says this; False if it ends instead."""
        while (said := await self.next()) is not None:
            self.wrong += [said["wrong"]] if "wrong" in said else []
            if word in said:
                return True
        return False

    async def dies(self, seconds: float) -> bool:
        """Whether it ends by itself within this time, which a failpoint makes it do."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return not await self.says("finished")
        return False

    async def kill(self) -> int:
        """Kill it, unless it is dead or was never started; return its exit code."""
        if self._process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            if self.running:
                os.kill(self._process.pid, signal.SIGKILL)
        while await self.says(""):
            pass
        return await self._process.wait()

    async def ends(self) -> int:
        """Wait for its own end; return its exit code."""
        assert self._process is not None
        async with asyncio.timeout(FINISH_SECONDS):
            return await self._process.wait()

    async def finish(self) -> int:
        """Tell it to finish; return its exit code."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"finish\n")
        await self._process.stdin.drain()
        async with asyncio.timeout(FINISH_SECONDS):
            if not await self.says("finished"):
                self.wrong.append("the program ended without having finished")
            return await self._process.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


class Outcome(msgspec.Struct):
    """What came of one home."""

    kills: dict[str, int]
    sessions: int
    calls: int
    wrong: list[str]


class Campaign:
    """Kills on one home, through one door."""

    def __init__(
        self, door: str, server: ServerProcess, folder: Path, chance: random.Random
    ) -> None:
        self.door = door
        self.server = server
        self.folder = folder
        self.program = Program("shop_program", folder / "spec.json", folder / "log")
        self.kills: collections.Counter[str] = collections.Counter()
        self._chance = chance
        self._token = ""

    async def run(self, kills: int) -> Outcome:
        """Kill so many times, let all come to its end, and look."""
        connected = self.door == "connected"
        if connected:
            await self.server.start()
            self._token = self.server.token("write")
        self._specify("keep")
        program = self.program
        async with program:
            for _ in range(kills):
                what = await (
                    self._kill_server()
                    if connected and self._chance.random() < SERVERS
                    else self._kill_program()
                )
                self.kills[what] += 1
            await program.kill()
            self._specify("end")
            await self._ready()
            if (code := await program.finish()) != 0:
                program.wrong.append(f"the program ended with {code}")
        wrong = program.wrong
        if connected and (code := await self.server.stop()) != 0:
            wrong.append(f"the server ended with {code}")
        sessions, calls = look(self.server, self.folder, wrong)
        wrong += [f"left on disk: {each}" for each in left_on_disk(self.server)]
        wrong += [f"left running: {each}" for each in left_running(self.server)]
        return Outcome(kills=dict(self.kills), sessions=sessions, calls=calls, wrong=wrong)

    def _specify(self, on_exit: str) -> None:
        spec: dict[str, Any] = {"folder": str(self.folder), "on_exit": on_exit}
        if self.door == "connected":
            spec |= {"url": self.server.url, "token": self._token}
        else:
            spec |= {"home": str(self.server.home), "config": embedded_settings(self.server)}
        (self.folder / "spec.json").write_text(json.dumps(spec))

    async def _ready(self, failpoints: str = "") -> None:
        """Start the program, and wait until it is ready, or dead by a failpoint."""
        await self.program.start(failpoints)
        async with asyncio.timeout(START_SECONDS):
            if not await self.program.says("ready") and not failpoints:
                self.program.wrong.append("the program ended while it started")

    async def _kill_program(self) -> str:
        chance = self._chance
        if chance.random() < AT_POINT:
            await self.program.kill()
            point = chance.choice(POINTS)
            await self._ready(f"caller.{point}=kill@{chance.randint(1, 6)}")
            died = await self.program.dies(POINT_SECONDS)
            await self.program.kill()
            return point if died else f"{point} not passed"
        if chance.random() < STARTING:
            await self.program.kill()
            await self.program.start()
            await asyncio.sleep(chance.uniform(0.0, 1.5))
            await self.program.kill()
            return "while it starts"
        if not self.program.running:
            await self._ready()
        await asyncio.sleep(chance.uniform(*WITHIN))
        await self.program.kill()
        return "at any moment"

    async def _kill_server(self) -> str:
        if not self.program.running:
            await self._ready()
        await asyncio.sleep(self._chance.uniform(*WITHIN))
        await self.server.kill()
        await self.server.start()
        return "server"


def embedded_settings(server: ServerProcess) -> dict[str, Any]:
    """Settings of a program that runs on the home of this server itself."""
    return {
        "containers.runtime_dir": str(server.home / "r"),
        "containers.runtime": "process",
        "process.sandbox": "bubblewrap" if server.sandboxed else "best-effort",
        **SETTINGS,
    }


def look(server: ServerProcess, folder: Path, wrong: list[str]) -> tuple[int, int]:
    """Check the ledger and the logs; return how many sessions and calls there were."""
    numbers = [int(each) for each in (folder / "begun.txt").read_text().split()]
    expected = collections.Counter(order(n, call) for n in numbers for call in range(CALLS))
    with contextlib.closing(sqlite3.connect(folder / "shop.db")) as database:
        made = collections.Counter(
            number for (number,) in database.execute("SELECT number FROM refunds")
        )
        answers = database.execute("SELECT request_id, error FROM oubliette_answers").fetchall()
    for number in sorted(expected | made):
        if made[number] != expected[number]:
            wrong.append(f"{number} was refunded {made[number]} times, not {expected[number]}")
    rows = server.query("SELECT id, live, status FROM sessions")
    if len(rows) != len(numbers):
        wrong.append(f"{len(rows)} sessions, not {len(numbers)}")
    wrong += [f"{each} is {status}" for each, live, status in rows if live or status != "completed"]
    asked: list[str] = []
    for session, _, _ in rows:
        asked += _check_log(server, session, wrong)
    if sorted(asked) != sorted(request for request, _ in answers):
        wrong.append(f"{len(asked)} requests in the logs, {len(answers)} answers are kept")
    wrong += [f"{request} was answered with {error}" for request, error in answers if error]
    return len(rows), len(asked)


def _check_log(server: ServerProcess, session: str, wrong: list[str]) -> list[str]:
    """No gap, one turn that completed, each request answered once; the ids of its requests."""
    rows = server.query(
        "SELECT idx, type, data FROM events WHERE session_id = ? ORDER BY idx", session
    )
    if [row[0] for row in rows] != list(range(len(rows))):
        wrong.append(f"{session}: gaps in its log")
    events = [(kind, msgspec.json.decode(data)) for _, kind, data in rows]
    asked = [data["request_id"] for kind, data in events if kind == TOOL_REQUEST]
    settled = [
        (data["request_id"], data["outcome"])
        for kind, data in events
        if kind == "caller_tool_settled"
    ]
    if sorted(settled) != sorted((each, "result") for each in set(asked)):
        wrong.append(f"{session}: asked {asked}, settled {settled}")
    ends = [data["status"] for kind, data in events if kind == "completion"]
    if ends != ["completed"]:
        wrong.append(f"{session}: its turn ended {ends}")
    return asked


async def campaign(
    door: str, *, kills: int, chance: random.Random, zygote: Zygote | None = None
) -> Outcome:
    """Kill so many times on a new home, and look."""
    async with ServerProcess(zygote=zygote, settings=SETTINGS) as server:
        folder = server.home.with_name(f"{server.home.name}-shop")
        folder.mkdir()
        try:
            run = Campaign(door, server, folder, chance)
            outcome = None
            try:
                outcome = await run.run(kills)
            finally:
                if outcome is None or outcome.wrong:
                    log = folder / "log"
                    print(log.read_text()[-20_000:] if log.exists() else "", file=sys.stderr)
                    print(server.log()[-5000:] if server.log_file.exists() else "", file=sys.stderr)
            return outcome
        finally:
            await asyncio.to_thread(shutil.rmtree, folder)


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.shop_kills")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--door", choices=DOORS, default="embedded")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    print(f"{given.kills} kills, {given.door}, seed {given.seed}", flush=True)
    began = time.monotonic()
    outcome = asyncio.run(
        campaign(given.door, kills=given.kills, chance=random.Random(f"{given.seed}"))
    )
    print(
        f"{outcome.sessions} sessions, {outcome.calls} calls, kills {outcome.kills},"
        f" {len(outcome.wrong)} wrong, {time.monotonic() - began:.0f} s"
    )
    for each in outcome.wrong:
        print(f"  {each}")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
