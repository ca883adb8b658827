"""A server that is killed around a snapshot, a restore or a deletion loses no turn's files."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.snapshots.ref_files import refs_below
from oubliette.testing.server import ServerProcess
from tests.faults.here import Here, until
from tests.faults.history import BROKEN
from tests.git_hosts import git

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from oubliette.testing.fork_server import Zygote

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.whole,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
BEFORE = ["snapshot.begun", "snapshot.read"]
"""Points before the refs of a snapshot are there."""


@pytest.fixture
async def server(zygote: Zygote) -> AsyncIterator[ServerProcess]:
    async with ServerProcess(zygote=zygote, settings={"snapshots.mode": "on"}) as process:
        yield process
        print(process.log()[-50_000:] if process.log_file.exists() else "")


class Work:
    """A session whose turns write files, with what its workspace held after each."""

    def __init__(self, caller: Here) -> None:
        self.caller = caller
        self.session_id = ""
        self.workspace_id = ""
        self.held: dict[int, dict[str, str]] = {}

    @property
    def folder(self) -> Path:
        top = self.caller.server.home / "projects" / self.caller.project_id / "workspaces"
        return top / self.workspace_id

    @property
    def shadow(self) -> Path:
        top = self.caller.server.home / "snapshots" / self.caller.project_id
        return top / f"{self.workspace_id}.git"

    def files(self) -> dict[str, str]:
        return {each.name: each.read_text() for each in self.folder.iterdir() if each.is_file()}

    def names(self) -> set[str]:
        below = f"refs/oubliette/{self.session_id}/"
        return {each.removeprefix(below) for each in refs_below(self.shadow, below)}

    def stored(self, name: str) -> dict[str, str]:
        ref = f"refs/oubliette/{self.session_id}/{name}"
        names = git(self.shadow, "ls-tree", "-r", "--name-only", ref).split()
        return {each: git(self.shadow, "show", f"{ref}:{each}") for each in names}

    async def begin(self, **where: bool) -> None:
        self.session_id = await self.caller.spawn("exec echo 1 > one; echo 1 > kept", **where)
        found = await self.caller.call("session_get", session_id=self.session_id)
        self.workspace_id = found["workspace_id"]
        await self._over(1)

    async def go_on(self, turn: int) -> None:
        await self.caller.call(
            "session_message",
            session_id=self.session_id,
            message=f"exec rm -f one; echo {turn} > kept; echo {turn} > new{turn}",
        )
        await self._over(turn)

    async def _over(self, turn: int) -> None:
        await self.caller.turns_done(self.session_id)
        await until(lambda: str(turn) in self.names())
        self.held[turn] = self.files()

    def check(self) -> None:
        """Check that each turn's files are stored, and the repository is sound."""
        git(self.shadow, "fsck", "--strict")
        assert {turn: self.stored(str(turn)) for turn in self.held} == self.held


@pytest.mark.parametrize("point", [*BEFORE, "snapshot.stored"])
async def test_the_end_of_a_turn_is_stored_by_the_next_server(server, point) -> None:
    await server.start()
    async with Here(server) as caller:
        work = Work(caller)
        await work.begin()
        await caller.call(
            "session_message",
            session_id=work.session_id,
            message='exec echo 2 > two; rm one\ncall tester_approve {"what": "all"}',
        )
        await until((work.folder / "two").exists)
        await until(lambda: "2-start" in work.names())
        await server.arm(f"{point}=kill@1")
        caller.may.set()
        assert await server.ended() == -9
        work.held[2] = {"kept": "1\n", "two": "2\n"}
        assert ("2" in work.names()) == (point not in BEFORE)
        await server.start()
        await until(lambda: "2" in work.names())
        work.check()
        (work.folder / "two").write_text("since")
        await caller.call("session_restore", session_id=work.session_id, turn=2)
        assert work.files() == work.held[2]


async def test_the_end_of_a_turn_that_is_stored_stays_as_it_is(server) -> None:
    await server.start()
    async with Here(server) as caller:
        work = Work(caller)
        await work.begin()
        await server.kill()
        (work.folder / "since").write_text("of somebody else")
        await server.start()
        await work.go_on(2)
        assert "since" in work.held[2]
        work.check()


@pytest.mark.parametrize("point", ["restore.begun", "restore.written"])
async def test_a_restore_that_was_cut_off_loses_nothing_and_can_be_repeated(server, point) -> None:
    await server.start()
    async with Here(server) as caller:
        work = Work(caller)
        await work.begin()
        await work.go_on(2)
        (work.folder / "since").write_text("since")
        await server.arm(f"{point}=kill@1")
        with contextlib.suppress(*BROKEN):
            await caller.call("session_restore", session_id=work.session_id, turn=1)
        assert await server.ended() == -9
        assert work.files() == (
            work.held[1] if point == "restore.written" else {**work.held[2], "since": "since"}
        )
        await server.start()
        work.check()
        (kept,) = [each for each in work.names() if each.startswith("2-restore-")]
        assert work.stored(kept) == {**work.held[2], "since": "since"}
        await caller.call("session_restore", session_id=work.session_id, turn=1)
        assert work.files() == work.held[1]
        work.check()


async def delete(work: Work) -> None:
    await work.caller.call(
        "workspace_delete", project_id=work.caller.project_id, workspace_id=work.workspace_id
    )


@pytest.mark.parametrize("point", ["workspace.kept", "workspace.deleted"])
async def test_a_workspace_is_there_or_deleted_and_its_turns_are_stored(server, point) -> None:
    await server.start()
    async with Here(server) as caller:
        work = Work(caller)
        await work.begin(create_workspace=True)
        await work.go_on(2)
        await caller.call("session_end", session_id=work.session_id)
        await server.arm(f"{point}=kill@1")
        with contextlib.suppress(*BROKEN):
            await delete(work)
        assert await server.ended() == -9
        assert work.files() == work.held[2]
        await server.start()
        found = await caller.call("workspace_list", project_id=caller.project_id)
        there = work.workspace_id in {each["id"] for each in found["workspaces"]}
        assert there == (point == "workspace.kept")
        if there:
            assert work.files() == work.held[2]
            await delete(work)
        await until(lambda: not work.folder.exists())
        work.check()


async def test_a_project_that_was_deleted_is_gone_with_the_next_server(server) -> None:
    await server.start()
    async with Here(server) as caller:
        work = Work(caller)
        await work.begin()
        await caller.call("session_end", session_id=work.session_id)
        await server.arm("project.deleted=kill@1")
        tree = git(work.shadow, "rev-parse", f"refs/oubliette/{work.session_id}/1^{{tree}}")
        with contextlib.suppress(*BROKEN):
            await caller.call("project_delete", project_id=caller.project_id, discard=tree.strip())
        assert await server.ended() == -9
        await server.start()
        assert (await caller.call("project_list"))["projects"] == []
        await until(lambda: not work.shadow.parent.exists())
        await until(lambda: not work.folder.exists())
