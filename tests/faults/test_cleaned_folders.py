"""A server goes on after something has cleaned the folders of its sockets, such as systemd-tmpfiles."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from oubliette.cli.client.tools import HomeServer
from tests.faults.here import Here, until

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


def runtime_base(server: ServerProcess) -> Path:
    return server.home / "r" / f"oubliette-{os.geteuid()}"


async def test_sockets_that_were_removed_are_made_again(server: ServerProcess) -> None:
    """Where inotify tells of it; the guest makes its own when the server does not find it."""
    await server.start()
    (server.home / "control.sock").unlink()
    await until((server.home / "control.sock").exists)
    assert await asyncio.to_thread(HomeServer(server.home).call, "project_list", {})
    async with Here(server) as caller:
        first = await caller.spawn('call approve {"what": "it"}\nsay approved')
        await caller.event("caller_tool_request", session_id=first)
        (socket,) = runtime_base(server).glob("*/relay.sock")
        socket.unlink()
        second = await caller.spawn("say two")
        assert (await caller.event("completion", session_id=second))["final_text"] == "two"
        assert socket.exists()
        caller.may.set()
        assert (await caller.event("completion", session_id=first))["final_text"] == "approved"


@pytest.mark.whole
async def test_a_container_whose_folder_is_gone_is_lost_with_the_reason_and_the_next_has_another(
    server: ServerProcess,
) -> None:
    await server.start()
    async with Here(server) as caller:
        first = await caller.spawn("say one")
        await caller.event("completion", session_id=first)
        shutil.rmtree(runtime_base(server))
        second = await caller.spawn("say two")
        error = await caller.event("error", session_id=second, timeout=60)
        assert "relay.sock: No such file or directory" in error["message"]
        third = await caller.spawn("say three")
        assert (await caller.event("completion", session_id=third))["final_text"] == "three"


async def test_the_runtime_folder_is_locked_so_that_tmpfiles_leaves_it_alone(
    server: ServerProcess,
) -> None:
    await server.start()
    folder = os.open(runtime_base(server), os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert await server.stop() == 0
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(folder)
