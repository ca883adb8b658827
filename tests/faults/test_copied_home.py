"""A copy of a home beside the original: it takes nothing of the original's, and says so."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from oubliette.runtime.files.home import DATABASE
from oubliette.testing.server import ServerProcess
from tests.faults.here import Here

pytestmark = pytest.mark.anyio


def copy_home(server: ServerProcess, copy: ServerProcess) -> None:
    """As a backup while the server runs would have it."""
    ignored = shutil.ignore_patterns("*.sock", "r", "lock", DATABASE + "*", "server.log")
    shutil.copytree(server.home, copy.home, ignore=ignored, dirs_exist_ok=True, symlinks=True)
    with (
        contextlib.closing(sqlite3.connect(server.home / DATABASE)) as source,
        contextlib.closing(sqlite3.connect(copy.home / DATABASE)) as target,
    ):
        source.backup(target)


def restored(copy: ServerProcess) -> None:
    """`oubliette home adopt`."""
    subprocess.run(
        [sys.executable, "-m", "oubliette", "home", "adopt", "--home", str(copy.home)],
        check=True,
        timeout=60,
        capture_output=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("OUBLIETTE_")},
    )


@pytest.fixture
async def copy(server, zygote):
    """A home for the copy, that shares the runtime folder of the original."""
    settings = {"containers.runtime_dir": server.home / "r"}
    async with ServerProcess(zygote=zygote, settings=settings) as process:
        yield process
        print(process.log()[-20_000:] if process.log_file.exists() else "")


@pytest.mark.whole
@pytest.mark.parametrize("original", ["runs", "is stopped", "is elsewhere"])
async def test_a_copy_takes_over_no_agent_of_the_original(server, copy, original):
    await server.start(settings={"server.on_stop": "keep"})
    async with Here(server) as caller:
        session = await caller.spawn("say begun\nsleep 600")
        await caller.event("message", session_id=session)
        agents = server.agents(session)
        assert agents
        copy_home(server, copy)
        if original == "is stopped":
            assert await server.stop() == 0
        if original == "is elsewhere":  # so that the lock alone can tell
            with contextlib.closing(sqlite3.connect(copy.home / DATABASE)) as database:
                database.execute("DELETE FROM meta WHERE key = 'place'")
                database.commit()
        with pytest.raises(RuntimeError) as refused:
            await copy.start()
        told = str(refused.value)
        if original == "is elsewhere":
            assert f"process {server.pid}, home {server.home}, since 2" in told
        else:
            assert f"{copy.home} is a copy of {server.home}" in told
        assert f"oubliette home adopt --home {copy.home}" in told
        assert server.agents(session) == agents

        restored(copy)
        assert copy.instance() != server.instance()
        await copy.start()
        assert server.agents(session) == agents
        async with asyncio.timeout(20):
            while (found := copy.control("session_get", session_id=session))["status"] == "running":
                await asyncio.sleep(0.05)
        assert found["status"] == "failed", found
        assert await copy.stop() == 0
        assert server.agents(session) == agents
        if original == "is stopped":
            await server.start()
        assert (await caller.status(session))[0] == "running"


async def test_a_home_that_was_moved_is_no_copy(server, copy):
    await server.start()
    instance = server.instance()
    copy_home(server, copy)
    assert await server.stop() == 0
    shutil.rmtree(server.home / "config")
    (server.home / DATABASE).unlink()
    await copy.start()
    assert copy.instance() == instance
    assert await copy.stop() == 0


async def test_a_second_server_of_a_home_is_told_who_has_it_and_since_when(server, copy):
    await server.start()
    home, copy.home = copy.home, server.home
    try:
        with pytest.raises(RuntimeError, match=rf"\({server.pid}\) uses {server.home}, since 2\d"):
            await copy.start()
    finally:
        copy.home = home
