"""Plain git fetches a project from any node: the node passes the request on to the project's home."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import oubliette
from oubliette.tools.home_streams import STREAMS
from tests.git_hosts import ENVIRONMENT, git
from tests.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.requires("postgres"),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
SECONDS = 60.0
LARGE = 3_000_000
"""Bytes of a file that git cannot compress: many pieces of a stream."""


@pytest.fixture
async def cluster(postgres_url: str) -> AsyncIterator[Nodes]:
    """The node `alpha`, on which projects are made, and `beta`, which clients connect to."""
    async with Nodes(postgres_url, **{"snapshots.mode": "on"}) as nodes:
        await nodes.start("alpha", "beta")
        nodes.drain("beta")
        yield nodes


def address(cluster: Nodes, node: str, project_id: str, key: str) -> str:
    return f"http://oub:{key}@{urlsplit(cluster.servers[node].url).netloc}/git/{project_id}"


async def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run git as a person does; return its exit code and all that it prints."""
    process = await asyncio.create_subprocess_exec(
        "git", *arguments,
        cwd=folder, env={**ENVIRONMENT, "GIT_TERMINAL_PROMPT": "0"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(SECONDS):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode()


async def project_with(cluster: Nodes, command: str) -> str:
    """A project of alpha in which a turn has run this command; its id."""
    key = await cluster.key("alpha")
    async with oubliette.connect(cluster.servers["alpha"].url, key) as ob:
        project = await ob.project("shop")
        await project.run(f"exec {command}")
        return str(project.id)


async def test_snapshots_are_fetched_from_the_node_that_does_not_have_them(cluster, tmp_path):
    project_id = await project_with(
        cluster, f"head -c {LARGE} /dev/urandom > large; echo one > small"
    )
    key = await cluster.key("alpha", f"project:{project_id}:ro")
    git(tmp_path, "init", "--quiet")
    refs = "refs/oubliette/*:refs/oubliette/*"
    for version in ("2", "0"):
        code, told = await run(
            tmp_path, "-c", f"protocol.version={version}",
            "fetch", "-q", address(cluster, "beta", project_id, key), refs,
        )  # fmt: skip
        assert code == 0, told
    (turn,) = git(tmp_path, "for-each-ref", "--format=%(refname)", "refs/oubliette/**/1").split()
    assert git(tmp_path, "show", f"{turn}:small") == "one\n"
    assert git(tmp_path, "cat-file", "-s", f"{turn}:large").strip() == str(LARGE)
    system = cluster.servers["alpha"].context.store._system
    assert [name for name in system.names if name.startswith(f"{STREAMS}/")] == []


@pytest.mark.whole
async def test_the_key_is_checked_by_the_node_that_is_asked(cluster, tmp_path):
    project_id = await project_with(cluster, "echo one > small")
    other = (await cluster.control("alpha", "project_create", name="other"))["id"]
    key = await cluster.key("alpha", f"project:{other}:ro")
    code, told = await run(tmp_path, "ls-remote", address(cluster, "beta", project_id, key))
    assert code != 0
    assert "not found" in told
    code, told = await run(tmp_path, "ls-remote", address(cluster, "beta", project_id, "oub_no"))
    assert code != 0
    assert "Authentication failed" in told


@pytest.mark.whole
async def test_a_fetch_whose_home_is_lost_fails(cluster, tmp_path):
    project_id = await project_with(cluster, "echo one > small")
    key = await cluster.key("alpha")
    url = address(cluster, "beta", project_id, key)
    assert (await run(tmp_path, "ls-remote", url))[0] == 0
    cluster.network.cut("alpha")
    code, told = await run(tmp_path, "ls-remote", url)
    assert code != 0
    assert "503" in told
