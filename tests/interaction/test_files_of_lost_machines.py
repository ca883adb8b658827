"""What a machine that comes back still has of a project that has another home by then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import oubliette
from oubliette.errors import OublietteError
from tests.consent import delete_with_all
from tests.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.whole,
    pytest.mark.timeout(180),
    pytest.mark.requires("postgres"),
]
WITHIN = 60.0


async def lose(cluster: Nodes, name: str) -> None:
    """Give a node up, and wait until its server has ended for it."""
    server = cluster.servers[name]
    cluster.give_up(name)
    assert "lost its lease" in await asyncio.wait_for(asyncio.shield(server.failed), WITHIN)
    await cluster.stop(name)


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""  # it is just being replaced


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN):
        while not holds():
            await asyncio.sleep(0.05)  # nobody tells when it is removed


async def test_files_of_a_lost_machine_are_kept_unused_until_their_project_comes_back_or_is_deleted(
    postgres_url: str,
):
    async with Nodes(postgres_url) as cluster:
        await cluster.start("alpha", "beta")
        cluster.drain("beta")
        key = await cluster.key("alpha")
        home: Path = cluster.servers["alpha"].context.home
        async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
            projects = [await ob.project("shop"), await ob.project("shed")]
            for project in projects:
                await project.exec("echo before > note.txt")
            cluster.drain("beta", draining=False)
            await lose(cluster, "alpha")
            for project in projects:
                assert (await project.exec("cat note.txt"))["exit_code"] != 0
                await project.exec("echo after > note.txt")
            await cluster.start("alpha")
            kept = [next((home / "projects" / p.id).rglob("note.txt")) for p in projects]
            assert [text_of(path) for path in kept] == ["before\n", "before\n"]
            shop, shed = projects
            assert (await shop.exec("cat note.txt"))["stdout"] == "after\n"

            await delete_with_all(ob.call, shed.id)
            cluster.drain("beta")  # the other one moves back
            await until(lambda: text_of(kept[0]) == "after\n")
            async with asyncio.timeout(WITHIN):
                while True:
                    try:
                        assert (await shop.exec("cat note.txt"))["stdout"] == "after\n"
                        break
                    except OublietteError:
                        await asyncio.sleep(0.1)  # it is on its way
        await cluster.stop("alpha")
        await cluster.start("alpha")
        await until(lambda: not kept[1].parent.exists())
