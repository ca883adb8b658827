"""Commits of agents, fetched from a real upload-pack, and merged as they are."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tracemalloc
from typing import Any

import pytest

from oubliette.errors import Conflict, DeadlineExceeded, RuntimeFailure
from oubliette.runtime.repositories.base_commits import base_of
from oubliette.runtime.repositories.commit_quarantine import AGENT, CommitQuarantine
from oubliette.runtime.repositories.git_errors import RepositoryTooLarge
from tests.git_hosts import ENVIRONMENT, GIT, commit, git
from tests.unit.runtime.repositories.test_branch_merge import Site, Work, jobs, made  # noqa: F401

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]


class Program:
    """A program on this machine, in the place of one in a container."""

    def __init__(self, *command: str) -> None:
        self.command = command
        self.process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Program:
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            *self.command, stdin=pipe, stdout=pipe, env=ENVIRONMENT
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.process.communicate()  # it is not over before what it wrote is read

    async def read(self) -> bytes:
        return await self.process.stdout.read(1 << 16)  # type: ignore[union-attr]

    async def write(self, data: bytes) -> None:
        self.process.stdin.write(data)  # type: ignore[union-attr]
        await self.process.stdin.drain()  # type: ignore[union-attr]

    async def write_eof(self) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]


async def fetched(site: Site, work: Work, *command: str, most: int = 0, seconds: float = 60) -> str:
    """Fetch as the server does; return the commit."""
    base = await base_of(work.program, site.bare, work.workspace_id, "")
    upload = command or (GIT or "git", "upload-pack", "--strict", f"{work.folder}/.git")
    async with Program(*upload) as program:
        async with CommitQuarantine(site.bare, work.program, base) as quarantine:
            await quarantine.fetch(program, most=most, seconds=seconds)
            return await quarantine.keep(work.workspace_id)


def left(site: Site) -> set[str]:
    """Return what is beside the repository, and is no workspace."""
    return {each.name for each in site.bare.parent.glob(".*.new") if not (each / ".git").exists()}


async def agent_merge(site: Site, work: Work, **more: Any) -> Any:
    return await work.merge(agent_head=await fetched(site, work), **more)


async def test_an_agents_commits_come_to_the_branch_as_they_are(made) -> None:  # noqa: F811
    site = await made()
    work = await site.work("one")
    first = commit(work.folder, {"a": "1\n"}, "First\n\nwith a reason")
    second = commit(work.folder, {"b": "2\n"}, "Second")
    await work.turn({"c": "not committed\n"})
    done = await agent_merge(site, work)
    assert (done.commits, done.files, done.fast_forward) == (3, 3, True)
    log = site.git("log", "--format=%H %an %s", f"{done.base}..work").splitlines()
    assert log[1:] == [f"{second} Ada Second", f"{first} Ada First"]
    assert log[0].endswith(f"What session {work.session_id} had not committed")
    assert site.git("show", "work:c") == "not committed"
    site.git("fsck", "--strict", "--full")
    again = await agent_merge(site, work)
    assert again.up_to_date
    assert left(site) == set()


@pytest.mark.whole
async def test_what_comes_later_is_merged_later(made) -> None:  # noqa: F811
    site = await made()
    work, other = await site.work("one"), await site.work("two")
    commit(work.folder, {"a": "1\n"}, "First")
    await work.turn({})
    await agent_merge(site, work)
    await other.turn({"other": "1\n"})
    await other.merge()
    commit(work.folder, {"a": "2\n"}, "Second")
    await work.turn({})
    done = await agent_merge(site, work)
    assert (done.merged, done.fast_forward) == (True, False)
    assert site.git("show", "work:a") == "2"
    assert {"other", "a"} <= site.files("work")


@pytest.mark.whole
async def test_a_rebase_keeps_authors_and_messages(made) -> None:  # noqa: F811
    site = await made()
    work, other = await site.work("one"), await site.work("two")
    await other.turn({"other": "1\n"})
    await other.merge()
    commit(work.folder, {"a": "1\n"}, "First\n\nwith a reason")
    await work.turn({"b": "1\n"})
    done = await agent_merge(site, work, strategy="rebase")
    assert done.commits == 2
    shown = site.git("log", "--format=%an|%ae|%s|%b", "--max-count=2", "work")
    assert "Ada|ada@example.invalid|First|with a reason" in shown
    assert (await agent_merge(site, work, strategy="rebase")).up_to_date


@pytest.mark.whole
async def test_merges_of_an_agent_are_no_line_for_a_rebase(made) -> None:  # noqa: F811
    site = await made()
    work = await site.work("one")
    git(work.folder, "checkout", "-q", "-b", "side")
    commit(work.folder, {"a": "1\n"}, "On the side")
    git(work.folder, "checkout", "-q", "-")
    commit(work.folder, {"b": "1\n"}, "Beside it")
    git(work.folder, "merge", "-q", "--no-ff", "-m", "Both", "side")
    await work.turn({})
    with pytest.raises(Conflict, match="no line that can be rebased"):
        await agent_merge(site, work, strategy="rebase")
    done = await agent_merge(site, work)
    assert (done.commits, done.fast_forward) == (3, True)


@pytest.mark.whole
async def test_what_conflicts_with_the_branch_is_data(made) -> None:  # noqa: F811
    site = await made()
    work, other = await site.work("one"), await site.work("two")
    await other.turn({"lines": "eins\n2\n3\n4\n5\n"})
    await other.merge()
    commit(work.folder, {"lines": "one\n2\n3\n4\n5\n"}, "In English")
    await work.turn({})
    before = site.refs()
    done = await agent_merge(site, work)
    assert [each.path for each in done.conflicts] == ["lines"]
    assert site.refs() == before


async def test_a_file_that_was_forced_past_gitignore_is_there(made) -> None:  # noqa: F811
    site = await made(files={".gitignore": "*.log\n"})
    work = await site.work("one")
    (work.folder / "a.log").write_text("wanted\n")
    git(work.folder, "add", "--force", "a.log")
    git(work.folder, "commit", "-qm", "A log")
    await work.turn({"b.log": "not wanted\n"})
    done = await agent_merge(site, work)
    assert "a.log" in site.files("work")
    assert "b.log" not in site.files("work")
    assert done.ignored_count == 1


async def test_content_of_git_lfs_that_was_committed_is_refused(made) -> None:  # noqa: F811
    site = await made(files={".gitattributes": "*.bin filter=lfs\n"})
    work = await site.work("one")
    commit(work.folder, {"a.bin": "content"}, "Content")
    await work.turn({})
    with pytest.raises(Conflict, match=r"pointers of Git LFS: a\.bin"):
        await agent_merge(site, work)


async def test_objects_that_git_refuses_never_reach_the_repository(made) -> None:  # noqa: F811
    """Here a tree with an entry named .git."""
    site = await made()
    work = await site.work("one")
    blob = git(work.folder, "hash-object", "-w", "--stdin", given=b"evil").strip()
    tree = git(work.folder, "mktree", given=f"100644 blob {blob}\t.git\n".encode()).strip()
    bad = git(work.folder, "commit-tree", "-p", "HEAD", "-m", "bad", tree).strip()
    git(work.folder, "update-ref", "HEAD", bad)
    with pytest.raises(RuntimeFailure, match="git refuses") as refused:
        await fetched(site, work)
    assert 'commits="turns"' in (refused.value.hint or "")
    assert git(site.bare, "cat-file", "--batch-check", given=bad.encode()).endswith("missing\n")
    assert left(site) == set()


@pytest.mark.parametrize("limit", ["size", "time"])
async def test_an_upload_pack_without_end_is_cut_off(made, limit, tmp_path) -> None:  # noqa: F811
    site = await made()
    work = await site.work("one")
    program = tmp_path / "program"
    text = "yes" if limit == "size" else "sleep 100"
    line = "printf '000eunpack ok\\n'; " if limit == "size" else ""
    program.write_text(f"#!/bin/sh\n{line}exec {text}\n")
    program.chmod(0o755)
    error = (RepositoryTooLarge, RuntimeFailure) if limit == "size" else DeadlineExceeded
    with pytest.raises(error):
        await fetched(site, work, str(program), most=1000, seconds=60 if limit == "size" else 1)
    assert left(site) == set()


async def test_more_than_may_come_is_refused(made) -> None:  # noqa: F811
    site = await made()
    work = await site.work("one")
    (work.folder / "noise").write_bytes(os.urandom(300_000))
    git(work.folder, "add", "noise")
    git(work.folder, "commit", "-qm", "noise")
    with pytest.raises(RepositoryTooLarge, match="more than 100000 bytes"):
        await fetched(site, work, most=100_000)
    assert left(site) == set()


async def test_no_name_of_a_ref_is_taken_over(made) -> None:  # noqa: F811
    site = await made()
    work = await site.work("one")
    head = commit(work.folder, {"a": "1\n"}, "First")
    for name in ("refs/heads/main", "refs/oubliette/base/one", "refs/tags/v1", "refs/heads/x"):
        git(work.folder, "update-ref", name, head)
    before = set(site.git("for-each-ref").splitlines())
    await fetched(site, work)
    after = set(site.git("for-each-ref").splitlines())
    assert after - before == {f"{head} commit\t{AGENT}/one"}
    assert before <= after


async def test_a_branch_without_a_commit_says_what_to_do(made) -> None:  # noqa: F811
    site = await made()
    work = await site.work("one")
    git(work.folder, "checkout", "-q", "--orphan", "new")
    with pytest.raises(Conflict, match="HEAD .* names no commit"):
        await fetched(site, work)


async def test_a_shallow_clone_gives_its_commits(made) -> None:  # noqa: F811
    site = await made(depth=1)
    work = await site.work("one")
    commit(work.folder, {"a": "1\n"}, "First")
    await work.turn({})
    assert (await agent_merge(site, work)).commits == 1


TALKATIVE = """
import sys
out, packet = sys.stdout.buffer, lambda data: b"%04x" % (len(data) + 4) + data
out.write(packet(b"1" * 40 + b" HEAD\\0side-band-64k ofs-delta\\n") + b"0000")
out.flush()
asked = b""
while b"done" not in asked:
    asked += sys.stdin.buffer.readline()
out.write(packet(b"NAK\\n"))
for _ in range(500):
    out.write(packet(b"\\x02" + b"x" * 60000 + b"\\n"))
out.write(packet(b"\\x03 the last words"))
"""
"""An upload-pack that says 30 MB to people, which no commit needs."""


async def test_what_upload_pack_says_to_people_takes_no_memory(made) -> None:  # noqa: F811
    site = await made()
    work = await site.work("one")
    tracemalloc.start()
    try:
        with pytest.raises(RuntimeFailure, match="the last words"):
            await fetched(site, work, sys.executable, "-c", TALKATIVE)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
    assert left(site) == set()
