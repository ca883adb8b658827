"""What an agent puts in the place of a folder, and a full disk, harm its own project alone."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.testing.server import ServerProcess
from tests.callers import ToolFailed
from tests.faults.here import Here
from tests.small_disk import fill, small_disk

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.testing.fork_server import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

PLACES = {
    ".rlm-context": ".rlm-context",
    "the workspace": "../../workspaces/$(basename $PWD)",
    "workspaces": "../../workspaces",
}
SHAPES = {
    "file": "echo x > {}",
    "FIFO": "mkfifo {}",
    "dangling link": "ln -s nowhere {}",
    "link out": "ln -s {outside} {}",
    "link beside": "mkdir -p ../../beside && ln -s $OLDPWD/../../beside {}",
}
TRIED = [
    *((".rlm-context", shape) for shape in ("file", "FIFO", "dangling link", "link out")),
    (".rlm-context", "link beside"),
    *(("the workspace", shape) for shape in ("file", "link out")),
    *(("workspaces", shape) for shape in ("file", "dangling link")),
]


def planted(place: str, shape: str, outside: Path) -> str:
    """The command with which an agent puts that shape there."""
    path = PLACES[place]
    make = SHAPES[shape].replace("{outside}", str(outside)).replace("{}", '"$P"')
    return f'exec P="{path}"; rm -rf "$P.was"; mv "$P" "$P.was"; {make}; ls -ld "$P"'


class Hostile(Here):
    """A caller whose agents break one project each."""

    async def make(self, name: str, **options: Any) -> str:
        project = await self.call("project_create", name=name, init_git=False, **options)
        return project["id"]

    async def run(self, project_id: str, prompt: str) -> str:
        session = await self.call(
            "session_spawn",
            project_id=project_id,
            prompt=prompt,
            new_session=True,
            context=self.context,
        )
        return session["session_id"]


@pytest.mark.whole
@pytest.mark.parametrize("tried", [TRIED[:5], TRIED[5:]], ids=["1", "2"])
async def test_what_an_agent_leaves_in_the_place_of_a_folder_harms_its_project_alone(
    server: ServerProcess, tmp_path: Path, tried: list[tuple[str, str]]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    await server.start()
    async with Hostile(server) as caller:
        broken: dict[tuple[str, str], tuple[str, str]] = {}
        for place, shape in tried:
            project = await caller.make(f"{place}, {shape}")
            session = await caller.run(project, planted(place, shape, outside))
            await caller.turns_done(session)
            broken[place, shape] = project, session
        assert await server.stop() == 0
        await server.start()
        await caller.listen()
        doctor = subprocess.run(
            [sys.executable, "-m", "oubliette", "doctor", "--quick", "--home", str(server.home)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for case, (project, session) in broken.items():
            reason = (await caller.call("project_get", project_id=project))["problem"]
            assert reason, case
            assert "cannot be" in reason, case
            assert reason in doctor.stdout, case
            assert (await caller.call("session_get", session_id=session))["problem"] == reason
            assert (await caller.call("session_events", session_id=session))["events"]
            with pytest.raises(ToolFailed, match="the workspace cannot be used") as refused:
                await caller.run(project, "say hi")
            assert reason in str(refused.value)
            await caller.call("session_end", session_id=session)
            await caller.call("project_delete", project_id=project)
            assert not (server.home / "projects" / project).exists(), case
        assert list(outside.iterdir()) == [], "nothing was made there"
        await caller.turns_done(await caller.spawn("say well"))


async def test_a_workspace_that_was_mended_is_used_again(server: ServerProcess) -> None:
    await server.start()
    async with Hostile(server) as caller:
        project = await caller.make("mended", workspace_isolation=True)
        session = await caller.run(project, "exec rm -rf .rlm-context; echo x > .rlm-context")
        await caller.turns_done(session)
        assert await server.stop() == 0
        await server.start()
        await caller.listen()
        with pytest.raises(ToolFailed, match=r"'\.rlm-context' cannot be used: Not a directory"):
            await caller.run(project, "say hi")
        beside = await caller.call(
            "session_spawn",
            project_id=project,
            prompt="say beside",
            create_workspace=True,
            context=caller.context,
        )
        await caller.turns_done(beside["session_id"])
        await caller.call("file_delete", project_id=project, path=".rlm-context")
        assert (await caller.call("project_get", project_id=project))["problem"] is None
        await caller.turns_done(await caller.run(project, "exec touch .rlm-context/shared"))


async def test_a_workspace_that_an_agent_removes_is_made_again_and_one_that_it_replaces_is_told(
    server: ServerProcess, tmp_path: Path
) -> None:
    await server.start()
    async with Hostile(server) as caller:
        for number, remove in enumerate(('rm -rf "$PWD"', "rm -rf ../../workspaces")):
            project = await caller.make(f"removed {number}")
            await caller.turns_done(await caller.run(project, f"exec {remove}"))
            await caller.turns_done(await caller.run(project, "exec touch .rlm-context/again"))
            listed = await caller.call("file_list", project_id=project, path=".rlm-context")
            assert [each["name"] for each in listed["entries"]] == ["again"]
        for shape in ("file", "link out"):
            project = await caller.make(f"replaced by a {shape}")
            session = await caller.run(project, planted("the workspace", shape, tmp_path))
            await caller.turns_done(session)
            with pytest.raises(ToolFailed, match="the workspace cannot be used"):
                await caller.run(project, "say hi")
            assert (await caller.call("session_get", session_id=session))["problem"]
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["the workspace", "workspaces"])
async def test_a_workspace_that_cannot_be_used_is_deleted(
    server: ServerProcess, tmp_path: Path, place: str
) -> None:
    (tmp_path / "kept").touch()
    await server.start()
    async with Hostile(server) as caller:
        project = await caller.make("kept")
        spawned = await caller.call(
            "session_spawn",
            project_id=project,
            prompt=planted(place, "link out", tmp_path),
            create_workspace=True,
            context=caller.context,
        )
        await caller.turns_done(spawned["session_id"])
        await caller.call("session_end", session_id=spawned["session_id"])
        workspace = {"project_id": project, "workspace_id": spawned["workspace_id"]}
        await caller.call("workspace_delete", **workspace)
        left = (await caller.call("workspace_list", project_id=project))["workspaces"]
        assert [each["is_default"] for each in left] == [True]
        assert (tmp_path / "kept").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every folder")
async def test_a_workspace_without_any_right_harms_its_project_alone(
    server: ServerProcess,
) -> None:
    await server.start()
    async with Hostile(server) as caller:
        project = await caller.make("closed")
        session = await caller.run(project, "exec chmod 0 .")
        await caller.turns_done(session)
        assert await server.stop() == 0
        await server.start()
        await caller.listen()
        with pytest.raises(ToolFailed, match="Permission denied"):
            await caller.run(project, "say hi")
        assert "denied" in (await caller.call("project_get", project_id=project))["problem"]
        await caller.turns_done(await caller.spawn("say well"))
        for folder in server.home.joinpath("projects", project, "workspaces").iterdir():
            folder.chmod(0o755)
        await caller.turns_done(await caller.run(project, "say hi"))


@pytest.mark.requires("root")
async def test_a_project_that_is_opened_on_a_full_disk_is_used_once_there_is_room(
    zygote: Zygote, tmp_path: Path
) -> None:
    async with ServerProcess(zygote=zygote) as server:
        with small_disk(server.home / "projects", 4, server.home) as disk:
            await server.start()
            async with Hostile(server) as caller:
                project = await caller.make("full")
                assert await server.stop() == 0
                await server.start()
                await caller.listen()
                ballast = fill(disk)
                for _ in range(3):
                    with pytest.raises(ToolFailed, match="No space left on device"):
                        await caller.run(project, "say hi")
                assert "space" in (await caller.call("project_get", project_id=project))["problem"]
                ballast.unlink()
                await caller.turns_done(await caller.run(project, "say hi"))
                assert await server.stop() == 0


BROKEN = {
    "a file for the workspaces": ("projects/{}/workspaces", lambda path: path.write_text("x")),
    "a FIFO for a workspace": ("projects/{}/workspaces/{}", os.mkfifo),
    "a link for shared data": (
        "projects/{}/workspaces/{}/.rlm-context", lambda path: path.symlink_to("away"),
    ),
    "a link to nothing for the project": (
        "projects/{}", lambda path: path.symlink_to("nowhere"),
    ),
    "a file for the HOMEs": ("homes/{}", lambda path: path.write_text("x")),
}  # fmt: skip


@pytest.mark.whole
async def test_of_twenty_projects_five_are_broken_and_the_others_are_served(
    server: ServerProcess,
) -> None:
    await server.start()
    async with Hostile(server) as caller:
        sound = [await caller.make(f"sound {number}") for number in range(15)]
        broken = {await caller.make(case): case for case in BROKEN}
        projects = (await caller.call("project_list", limit=100))["projects"]
        default = {each["id"]: each["default_workspace_id"] for each in projects}
        assert not any(each["problem"] for each in projects)
        assert await server.stop() == 0
        for project, case in broken.items():
            path, put = BROKEN[case]
            place = server.home / path.format(project, default[project])
            place.rename(place.with_name(f"{place.name}.was"))
            put(place)
        await server.start()
        await caller.listen()

        def command(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "oubliette", *words, "--home", str(server.home)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        listed = (await caller.call("project_list", limit=100))["projects"]
        told = {each["id"]: each["problem"] for each in listed if each["problem"]}
        assert told.keys() == broken.keys()
        said, doctor = command("project", "list").stderr, command("doctor", "--quick").stdout
        for project, reason in told.items():
            assert f"{broken[project]} ({project}) cannot be used: {reason}; remove" in said
            assert f"{broken[project]} ({project}) cannot be used: {reason}" in doctor
            assert (await caller.call("project_get", project_id=project))["problem"] == reason
            with pytest.raises(ToolFailed, match="the workspace cannot be used") as refused:
                await caller.run(project, "say hi")
            assert reason in str(refused.value)
        for session in [await caller.run(project, "say hi") for project in sound]:
            await caller.turns_done(session)
