"""A server that is killed while bubblewrap starts leaves nothing that waits for it."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.containers.base import LABEL_CONTAINER
from oubliette.runtime.containers.process import procfs
from oubliette.testing.server import ServerProcess
from tests.faults.here import Here, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.whole, pytest.mark.requires("bubblewrap")]

SLOW = """#!/bin/sh
# Holds the first container up, before bubblewrap makes its first process.
case "$*" in *--info-fd*)
    if mkdir {folder}/began 2>/dev/null; then
        while [ ! -e {folder}/go ]; do sleep 0.02; done
    fi
esac
exec {bwrap} "$@"
"""


def of_containers(instance: str) -> dict[str, list[int]]:
    """Container id → processes with the command line of a container of this instance."""
    found: dict[str, list[int]] = {}
    for pid in procfs.pids():
        arguments = procfs.command_line(pid)
        container_id = procfs.labels_of(arguments).get(LABEL_CONTAINER)
        if container_id is not None and any(instance in each for each in arguments):
            found.setdefault(container_id, []).append(pid)
    return found


@pytest.mark.parametrize("comes", ["before", "after"])
async def test_a_sandbox_that_a_killed_server_was_starting_leaves_no_process(
    zygote, monkeypatch, tmp_path: Path, comes: str
):
    """Whether the next server looks for it before it is there, or after."""
    slow = tmp_path / "bwrap"
    slow.write_text(SLOW.format(folder=tmp_path, bwrap=shutil.which("bwrap")))
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    async with ServerProcess(zygote=zygote, settings={"process.sandbox": "bubblewrap"}) as server:
        await server.start()
        async with Here(server) as caller:
            session = await caller.spawn("say hello")
            await until((tmp_path / "began").exists)
            await server.kill()
            instance = server.instance()
            (first,) = of_containers(instance)
            if comes == "before":
                await server.start()
                page = await caller.turns_done(session)
                (tmp_path / "go").touch()
            else:
                (tmp_path / "go").touch()
                await until(lambda: first in server.containers())
                await server.start()
                page = await caller.turns_done(session)
            assert page["final_response"] == "hello"
            await until(lambda: first not in of_containers(instance))
            assert len(of_containers(instance)) == 1
