"""What a killed server has left on disk is cleared away by the next, and a stop leaves nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.containers.base import LABEL_CONTAINER
from oubliette.runtime.containers.docker.address import FLAVOURS
from oubliette.runtime.containers.process import procfs
from oubliette.runtime.files.home import DATABASE
from tests.consent import delete_with_all
from tests.faults.here import Here, until
from tests.faults.history import BROKEN

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.testing.server import ServerProcess

pytestmark = pytest.mark.anyio

TREE = "exec mkdir -p a/b/c d && touch a/b/c/file d/file\nexec echo 1 > ~/kept"


def entries(server: ServerProcess, project: str = "") -> list[str]:
    """All that lies in a home of the projects, or of one of them; a server may be removing it."""
    tops = [server.home / name for name in ("projects", "homes", "roots", "config/projects")]
    found = [
        os.path.relpath(os.path.join(folder, name), server.home)
        for top in tops
        for folder, folders, files in os.walk(top)  # unlike rglob it passes over what vanishes
        for name in (*folders, *files)
    ]
    return [path for path in found if project in path or ".gone" in path]


@pytest.mark.parametrize(
    "point",
    [
        "folder.emptied@2",
        pytest.param("project.deleted@1", marks=pytest.mark.whole),
        *(pytest.param(f"folder.emptied@{n}", marks=pytest.mark.whole) for n in (1, 4, 6, 9)),
    ],
)
async def test_a_project_whose_removal_was_cut_off_is_removed_by_the_next_server(server, point):
    await server.start()
    async with Here(server) as caller:
        session = await caller.spawn(TREE)
        await caller.turns_done(session)
        await caller.call("session_end", session_id=session)
        name, _, at = point.partition("@")
        await server.arm(f"{name}=kill@{at}")
        with contextlib.suppress(*BROKEN):
            await delete_with_all(caller.call, caller.project_id)
        assert await server.ended() == -9
        assert entries(server, caller.project_id)
        await server.start()
        await until(lambda: not entries(server, caller.project_id))
        assert (await caller.call("project_list"))["projects"] == []
        assert await server.stop() == 0
        assert entries(server) == []
        assert runtime_entries(server) == []


async def test_a_session_whose_cleanup_was_cut_off_leaves_no_home(server):
    await server.start()
    async with Here(server) as caller:
        kept, gone = [await caller.spawn(f"{TREE}\nstderr 10") for _ in range(2)]
        for session in (kept, gone):
            await caller.turns_done(session)
        await caller.call("session_end", session_id=gone)
        await server.arm("session.purged=kill@1")
        with contextlib.suppress(*BROKEN):
            await caller.call("session_cleanup", max_age_hours=0)
        assert await server.ended() == -9
        await server.start()
        homes = server.home / "homes" / caller.project_id
        await until(lambda: [path.name for path in homes.iterdir()] == [kept])
        logs = server.home / "logs"
        await until(lambda: [path.name for path in logs.iterdir()] == [f"{kept}.stderr.log"])


def runtime_entries(server: ServerProcess) -> list[Path]:
    """All that lies in the runtime folder."""
    return [entry for base in (server.home / "r").iterdir() for entry in base.iterdir()]


async def test_the_runtime_folder_is_empty_after_an_orderly_stop(any_server):
    server = any_server
    await server.start(settings={"server.on_stop": "end"})
    async with Here(server) as caller:
        await caller.turns_done(await caller.spawn("say hello"))
        assert runtime_entries(server)
    assert await server.stop() == 0
    assert runtime_entries(server) == []


@pytest.mark.whole
@pytest.mark.parametrize("point", ["container.created@1", "container.launched@1"])
async def test_the_runtime_folder_is_empty_after_a_kill_and_a_stop(any_server, point):
    server = any_server
    name, _, at = point.partition("@")
    await server.start(failpoints=f"{name}=kill@{at}")
    async with Here(server) as caller:
        with contextlib.suppress(*BROKEN):
            await caller.spawn("say hello")
        assert await server.ended() == -9
        base = next((server.home / "r").iterdir())
        # Of one that was killed while it wrote:
        (base / ".01234567.json.999999999.89abcdef").touch()
        (base / ".kit-0123456789ab.999999999.89abcdef" / "bin").mkdir(parents=True)
        (base / "01234567").mkdir()
        await server.start(settings={"server.on_stop": "end"})
        # What the killed one has begun is gone through with.
        begun = await caller.call("session_list", project_id=caller.project_id)
        for session in begun["sessions"]:
            await caller.turns_done(session["session_id"])
    assert await server.stop() == 0
    assert runtime_entries(server) == []


async def test_a_container_that_a_deleted_project_has_left_goes_with_its_folders(server):
    """A kill between the end of its start and the deletion can leave its record."""
    await server.start()
    async with Here(server) as caller:
        session = await caller.spawn("say hello")
        await caller.turns_done(session)
        await caller.call("session_end", session_id=session)
        await server.kill()
        assert server.containers()
        with contextlib.closing(sqlite3.connect(server.home / DATABASE)) as store, store:
            store.execute(
                "UPDATE projects SET deleted_at = 1.0, data = json_set(data, '$.deleted_at', 1.0)"
            )
        await server.start()
        await until(lambda: not entries(server, caller.project_id))
        assert server.containers() == {}
        assert server.query("SELECT id FROM containers") == []
        assert (await caller.call("project_list"))["projects"] == []
        assert await server.stop() == 0
        assert entries(server) == []


async def test_a_container_that_was_removed_while_no_server_ran_leaves_no_spool(any_server):
    server = any_server
    await server.start(settings={"server.on_stop": "end"})
    async with Here(server) as caller:
        session = await caller.spawn("say hello")
        await caller.turns_done(session)
        await server.kill()
        (lost,) = server.containers()
        assert [path.name for path in (server.home / "spool").iterdir()] == [lost]
        if server.engine in FLAVOURS:
            with server.api() as api:
                label = f"{LABEL_CONTAINER}={lost}"
                (listed,) = api.containers(filters={"label": [label]})
                api.remove_container(listed["Id"], force=True)
        else:
            (process,) = server.containers().values()
            assert procfs.send_signal(process, signal.SIGKILL)
            await procfs.ended(process)
            shutil.rmtree(server.home / "r")
        await server.start(settings={"server.on_stop": "end"})
        await caller.turns_done(session)
        await until(lambda: server.query("SELECT id FROM containers") == [])
        assert await server.stop() == 0
    assert list((server.home / "spool").iterdir()) == []
