"""A server that is killed at random while it clones, stores and restores loses no turn's files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest

from oubliette.testing.server import ServerProcess
from tests.callers import ToolFailed
from tests.faults.history import BROKEN
from tests.faults.kill_jobs import Insistent
from tests.git_hosts import GitHost, checkout, git

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.testing.fork_server import Zygote

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.whole,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
SOAK = os.environ.get("OUBLIETTE_SOAK") == "1"
KILLS = 100 if SOAK else 10
WITHIN = (0.05, 1.2)
"""Seconds from a server's start to its kill; where no turn ends in them, they become more."""
PATIENCE: Final = 4
"""Kills within which a turn should end."""
FILES = 7
"""Files that turns write over and over."""


class Work:
    """One session whose turns write files, and now and then an older state is restored."""

    def __init__(self, caller: Insistent, session: str, chance: random.Random) -> None:
        self.caller = caller
        self.session = session
        self.chance = chance
        self.files: dict[str, str] = {}
        """What the workspace holds now."""
        self.held: dict[int, dict[str, str]] = {}
        """What it held at the end of each turn."""
        self.since = -1
        self.more = True

    async def run(self) -> None:
        turn = 1
        _, self.since = await self.caller.turn_over(self.session)
        while self.more:
            turn += 1
            name, text = f"file{turn % FILES}", f"{turn}:{self.chance.random()}"
            self.files |= {name: text, f"new{turn}": text}
            gone = self.chance.choice(sorted(self.files))
            prompt = f"exec printf {text} > {name}; printf {text} > new{turn}; rm -f {gone}"
            del self.files[gone]
            await self.caller.insist(
                "session_message",
                session_id=self.session,
                message=prompt,
                idempotency_key=f"turn{turn}",
            )
            _, self.since = await self.caller.turn_over(self.session, self.since)
            self.held[turn] = dict(self.files)
            if turn % 3 == 0 and len(self.held) > 1:
                back = self.chance.choice(list(self.held)[:-1])
                await self.caller.insist("session_restore", session_id=self.session, turn=back)
                self.files = dict(self.held[back])


async def clone(work: Work, host: GitHost) -> int:
    """Clone one project after the other, each new; return how many were whole."""
    number = whole = 0
    while work.more:
        number += 1
        await work.caller.up.wait()
        with contextlib.suppress(*BROKEN, ToolFailed):
            made = await work.caller.call(
                "project_create", name=f"clone {number}", repository={"url": host.url("shop")}
            )
            assert made["repository"]["state"] == "ready"
            whole += 1
        await asyncio.sleep(0.05)  # a refusal must not be asked for without end
    return whole


def ref_of(refs: list[str], turn: int) -> str:
    """The snapshot with the end of a turn: where a server was killed there, the next one taken."""
    restored = [each for each in refs if each.startswith(f"{turn}-restore-")]
    wanted = (str(turn), f"{turn}-restore", *sorted(restored), f"{turn + 1}-start", f"{turn}-final")
    return next(each for each in wanted if each in refs)


def stored(folder: Path, ref: str) -> dict[str, str]:
    """Name → content of the files of a snapshot."""
    names = git(folder, "ls-tree", "-r", "--name-only", ref).split()
    return {name: git(folder, "show", f"{ref}:{name}") for name in names}


async def test_each_turns_files_are_there_over_random_kills(zygote: Zygote, tmp_path: Path) -> None:
    seed = os.environ.get("OUBLIETTE_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"seed {seed}")  # shown if it fails
    chance = random.Random(seed)
    (tmp_path / "host").mkdir()
    settings: dict[str, Any] = {
        "snapshots.mode": "on",
        "agents.default": "scripted",
        "repositories.protocols": "http",
        "server.on_stop": "keep",
    }
    with GitHost(tmp_path / "host") as host:
        host.add("shop", checkout(tmp_path / "source"))
        async with ServerProcess(zygote=zygote, settings=settings) as server:
            await server.start()
            caller = Insistent(server.url, server.token("write"), chance)
            try:
                await caller.come_back()
                project = await caller.insist("project_create", name="one", init_git=False)
                spawned = await caller.insist(
                    "session_spawn",
                    project_id=project["id"],
                    prompt="exec true",
                    new_session=True,
                    context=caller.context,
                    idempotency_key="one",
                )
                work = Work(caller, spawned["session_id"], chance)
                tasks = [asyncio.create_task(work.run()), asyncio.create_task(clone(work, host))]
                kills, turns, pace = 0, 0, 1.0
                while kills < KILLS or len(work.held) < KILLS // 4:
                    kills += 1
                    if kills % PATIENCE == 0:  # a slow machine gets more time
                        pace *= 2 if len(work.held) == turns else 1
                        turns = len(work.held)
                    done, _ = await asyncio.wait(tasks, timeout=pace * chance.uniform(*WITHIN))
                    for task in done:
                        task.result()
                    caller.up.clear()
                    await server.kill()
                    await server.start()
                    while True:
                        with contextlib.suppress(*BROKEN):
                            await caller.come_back()
                            break
                work.more = False
                await asyncio.gather(*tasks)
                git(tmp_path, "init", "--quiet", "mine")
                where = urlsplit(server.url).netloc
                url = f"http://oub:{server.token('read')}@{where}/git/{project['id']}"
                mine = tmp_path / "mine"
                await asyncio.to_thread(git, mine, "fetch", "-q", url, "refs/oubliette/*:refs/o/*")
                git(mine, "fsck", "--strict")
                print(f"{kills} kills, {len(work.held)} turns, {tasks[1].result()} clones")
                below = f"refs/o/{work.session}/"
                refs = git(mine, "for-each-ref", "--format=%(refname)", below).split()
                names = [each.removeprefix(below) for each in refs]
                print(names)
                for turn, held in work.held.items():
                    assert stored(mine, below + ref_of(names, turn)) == held, turn
                top = server.home / "projects" / project["id"] / "workspaces"
                folder = top / project["default_workspace_id"]
                now = {each.name: each.read_text() for each in folder.iterdir() if each.is_file()}
                assert now == work.files
                await caller.insist("session_end", session_id=work.session)
            finally:
                await caller.__aexit__()
