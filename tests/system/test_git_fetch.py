"""Plain git fetches from a project over HTTP: its branches, and every snapshot of its sessions."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import shutil
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import pytest

from oubliette.runtime.containers.process import procfs
from tests.git_hosts import ENVIRONMENT, GitHost, checkout, commit, git
from tests.selection import core

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.site import Site

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
SETTINGS = {
    "snapshots.mode": "on",
    "agents.default": "scripted",
    "repositories.protocols": "http,https",
}
SECONDS = 60.0
ROOT = Path(__file__).parents[2]


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    source = checkout(tmp_path / "source", {"shop.py": "price = 1\n"})
    git(source, "tag", "-a", "v1", "-m", "the first release")
    git(source, "branch", "other")
    (tmp_path / "host").mkdir()
    with GitHost(tmp_path / "host") as started:
        started.add("shop", source)
        yield started


@pytest.fixture
async def caller(site):
    async with site.caller("http-auto") as caller:
        yield caller


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A repository of the person who fetches."""
    folder = tmp_path / "there"
    folder.mkdir()
    git(folder, "init", "--quiet")
    return folder


def address(site: Site, project: str, key: str | None, user: str = "oub") -> str:
    where = urlsplit(site.server.url).netloc
    return f"http://{'' if key is None else f'{user}:{key}@'}{where}/git/{project}"


async def run(folder: Path, *arguments: str) -> Ran:
    """Run git as a person does."""
    process = await asyncio.create_subprocess_exec(
        "git", *arguments,
        cwd=folder, env={**ENVIRONMENT, "GIT_TERMINAL_PROMPT": "0"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(SECONDS):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Ran(process.returncode or 0, out.decode(), err.decode())


async def done(folder: Path, *arguments: str) -> str:
    ran = await run(folder, *arguments)
    assert ran.code == 0, ran.err
    return ran.out


@pytest.mark.parametrize("version", core({"2"}, ["0", "1", "2"]))
async def test_a_project_is_cloned_with_its_branches_and_tags(
    site, caller, host, tmp_path, version
) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    url = address(site, project["id"], site.principal("read"))
    await done(tmp_path, "-c", f"protocol.version={version}", "clone", "--quiet", url, "mine")
    assert (tmp_path / "mine" / "shop.py").read_text() == "price = 1\n"
    mine = tmp_path / "mine"
    assert git(mine, "branch", "--show-current").strip() == "main"
    refs = git(mine, "for-each-ref", "--format=%(refname)").split()
    assert {"refs/remotes/origin/main", "refs/remotes/origin/other", "refs/tags/v1"} <= set(refs)
    await done(tmp_path, "clone", "--quiet", f"{url}.git", "again")


async def test_a_project_is_found_by_its_name_where_the_key_reaches_it(
    site, caller, host, tmp_path
) -> None:
    name = "the shop of names"
    project = await site.new_project(name=name, repository={"url": host.url("shop")})
    quoted = name.replace(" ", "%20")
    await done(tmp_path, "clone", "-q", address(site, quoted, site.principal("read")), "mine")
    assert (tmp_path / "mine" / "shop.py").read_text() == "price = 1\n"
    other = await site.new_project()
    stranger = site.principal(f"project:{other['id']}:ro")
    refused = await run(tmp_path, "clone", "-q", address(site, quoted, stranger), "not")
    assert refused.code != 0
    assert project["id"] not in refused.err


async def test_snapshots_of_a_session_that_was_cleaned_up_are_not_served(
    site, caller, there
) -> None:
    project = await site.new_project()
    gone = await site.spawn(caller, "exec echo one > file", project_id=project["id"])
    await gone.turn()
    await gone.end()
    await caller.call("session_cleanup", project_id=project["id"], max_age_hours=0)
    kept = await site.spawn(caller, "exec echo two > file", project_id=project["id"])
    await kept.turn()
    listed = await done(there, "ls-remote", address(site, project["id"], site.principal("read")))
    assert f"refs/oubliette/{kept.session_id}/1" in listed
    assert gone.session_id not in listed


@pytest.mark.parametrize("version", core({"2"}, ["0", "2"]))
async def test_each_turn_of_a_session_is_fetched_as_a_commit(site, caller, there, version) -> None:
    """A project that was never cloned from a repository has its snapshots alone."""
    project = await site.new_project()
    agent = await site.spawn(caller, "exec echo one > file", project_id=project["id"])
    await agent.turn()
    await agent.say("exec echo two > file; echo new > other")
    await agent.turn()
    url = address(site, project["id"], site.principal("read"))
    how = ("-c", f"protocol.version={version}", "fetch", "--quiet", url)
    await done(there, *how, "refs/oubliette/*:refs/oubliette/*")
    below = f"refs/oubliette/{agent.session_id}"
    assert git(there, "show", f"{below}/1:file") == "one\n"
    assert git(there, "show", f"{below}/2:file") == "two\n"
    assert git(there, "show", f"{below}/2:other") == "new\n"
    assert git(there, "diff", "--name-only", f"{below}/1", f"{below}/2").split() == [
        "file",
        "other",
    ]
    git(there, "fsck", "--strict")


@pytest.mark.whole
async def test_what_comes_later_is_fetched_without_what_is_there(site, caller, host, there) -> None:
    """Sessions of several workspaces, and the repository, are served together."""
    project = await site.new_project(repository={"url": host.url("shop")})
    url = address(site, project["id"], site.principal("read"))
    agents = [
        await site.spawn(
            caller,
            f"exec echo {number} > mine",
            project_id=project["id"],
            create_workspace=number > 0,
        )
        for number in range(3)
    ]
    for agent in agents:
        await agent.turn()
    fetch = ("fetch", "--quiet", url, "refs/oubliette/*:refs/oubliette/*", "main:refs/heads/theirs")
    await done(there, *fetch)
    for number, agent in enumerate(agents):
        assert git(there, "show", f"refs/oubliette/{agent.session_id}/1:mine") == f"{number}\n"
        assert git(there, "show", f"refs/oubliette/{agent.session_id}/1:shop.py") == "price = 1\n"
    await agents[0].say("exec echo more > mine")
    await agents[0].turn()
    made = commit(host.folder.parent / "source", {"shop.py": "price = 2\n"}, "dearer")
    git(host.folder.parent / "source", "push", "--quiet", str(host.folder / "shop.git"), "main")
    await caller.call("repository_fetch", project_id=project["id"])
    await done(there, *fetch)
    assert git(there, "show", f"refs/oubliette/{agents[0].session_id}/2:mine") == "more\n"
    assert git(there, "rev-parse", "refs/heads/theirs").strip() == made


async def test_nothing_is_copied_for_those_who_fetch(site, caller, host, there) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    agent = await site.spawn(caller, "exec echo one > file", project_id=project["id"])
    await agent.turn()
    url = address(site, project["id"], site.principal("read"))
    await done(there, "fetch", "--quiet", url, "refs/oubliette/*:refs/oubliette/*")
    home = site.server.home_of(project["id"])
    served = home / "repositories" / project["id"] / "served.git"
    stored = [each for each in (served / "objects").rglob("*") if each.is_file()]
    assert [each.name for each in stored] == ["alternates"]


async def test_a_wrong_key_and_none_are_refused(site, caller, there) -> None:
    project = await site.new_project()
    for key in ("wrong", None):
        ran = await run(there, "fetch", address(site, project["id"], key))
        assert ran.code == 128
        assert "Authentication failed" in ran.err or "could not read Username" in ran.err


async def test_the_credential_helper_gives_git_a_key_that_only_reads(
    site, caller, host, there, oubliette
) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    url = address(site, project["id"], None)
    words = f"PYTHONPATH={ROOT} {sys.executable} -m oubliette git-credential"
    helper = f"credential.helper=!env {words} --home {site.server.home}"
    await done(there, "-c", helper, "fetch", "--quiet", url, "refs/heads/main:refs/heads/theirs")
    assert git(there, "show", "theirs:shop.py") == "price = 1\n"
    assert "password" not in (there / ".git" / "config").read_text()
    listed = json.loads((await oubliette("token", "list", "-o", "json")).out)
    (key,) = [each for each in listed["tokens"] if each["name"] == "git"]
    assert (key["scope"], key["principal"]) == ("read", "operator")
    assert 3000 < key["expires_at"] - key["created_at"] <= 3600


@pytest.mark.whole
async def test_the_key_may_come_as_a_bearer(site, caller, host, there) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    bearer = f"http.extraHeader=Authorization: Bearer {site.principal('read')}"
    url = address(site, project["id"], None)
    assert "refs/heads/main" in await done(there, "-c", bearer, "ls-remote", url)


async def test_a_project_that_the_key_does_not_reach_is_as_if_it_were_not(
    site, caller, there
) -> None:
    hidden, mine = await site.new_project(), await site.new_project()
    key = site.principal(f"project:{mine['id']}:ro")
    unknown = mine["id"][:-4] + "zzzz"
    said = []
    for project in (hidden["id"], unknown, "..%2f..", "name", "na%00me"):
        ran = await run(there, "fetch", address(site, project, key))
        assert ran.code == 128
        assert "not found" in ran.err
        said.append(ran.err.replace(project, "PROJECT").replace(key, "KEY"))
    assert said[0] == said[1]
    assert await done(there, "ls-remote", address(site, mine["id"], key)) == ""


async def test_a_push_is_refused_with_the_way_to_merge(site, caller, host, tmp_path) -> None:
    project = await site.new_project(repository={"url": host.url("shop")})
    url = address(site, project["id"], site.principal("admin"))
    await done(tmp_path, "clone", "--quiet", url, "mine")
    commit(tmp_path / "mine", {"shop.py": "price = 0\n"})
    ran = await run(tmp_path / "mine", "push", url, "HEAD:main")
    assert ran.code != 0
    assert "session_merge" in ran.err, ran.err


@pytest.mark.whole
async def test_requests_are_in_the_audit_log(site, caller, oubliette, there) -> None:
    project = await site.new_project()
    await done(there, "ls-remote", address(site, project["id"], site.principal("read")))
    listed = await oubliette("audit", "-o", "json")
    assert listed.code == 0, listed.err
    assert "git-upload-pack" in listed.out
    assert project["id"] in listed.out


async def request(site: Site, project: str, key: str, head: str, body: bytes) -> bytes:
    """Send a POST by hand; return the status line of the answer."""
    where = urlsplit(site.server.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(_head(site, project, key, head, len(body)) + body)
        async with asyncio.timeout(SECONDS):
            return await reader.readline()
    finally:
        writer.close()


def _head(site: Site, project: str, key: str, more: str, length: int) -> bytes:
    basic = base64.b64encode(f"oub:{key}".encode()).decode()
    return (
        f"POST /git/{project}/git-upload-pack HTTP/1.1\r\n"
        f"Host: {urlsplit(site.server.url).netloc}\r\nAuthorization: Basic {basic}\r\n"
        f"Content-Type: application/x-git-upload-pack-request\r\n{more}"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


@pytest.mark.whole
async def test_a_body_that_grows_without_bound_is_refused(site, caller) -> None:
    """A few bytes of gzip may be a body of any size."""
    project = await site.new_project()
    packer = zlib.compressobj(wbits=31)
    line = b"0032have " + b"1" * 40 + b"\n"
    bomb = packer.compress(b"0011command=fetch0001")
    bomb += b"".join(packer.compress(line * 20_000) for _ in range(80)) + packer.flush()
    assert len(bomb) < 1_000_000
    head = "Content-Encoding: gzip\r\nGit-Protocol: version=2\r\n"
    answer = await request(site, project["id"], site.principal("read"), head, bomb)
    assert b" 413 " in answer
    torn = await request(site, project["id"], site.principal("read"), head, b"no gzip")
    assert b" 400 " in torn


def programs(project: str) -> list[int]:
    """The processes that serve a project to git's clients, with all that they have started."""
    tops = [
        pid
        for pid in procfs.pids()
        if (line := procfs.command_line(pid))
        and "upload-pack" in line
        and any(project in word for word in line)
    ]
    return [
        pid
        for pid in procfs.pids()
        if (found := procfs.parent_and_session(pid)) is not None
        and found[1] in tops
        and procfs.identify(pid) is not None
    ]


async def ended(pidfd: int) -> None:
    loop, end = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, end.set)
    try:
        await end.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


@pytest.mark.whole
async def test_a_client_that_goes_away_leaves_no_process(site, caller, tmp_path, host) -> None:
    source = host.folder.parent / "source"
    (source / "big").write_bytes(random.Random(1).randbytes(40_000_000))
    made = commit(source, {"more": "x"})
    git(source, "push", "--quiet", str(host.folder / "shop.git"), "main")
    project = await site.new_project(repository={"url": host.url("shop")})
    want = f"0032want {made}\n00000009done\n".encode()
    head = _head(site, project["id"], site.principal("read"), "", len(want))
    where = urlsplit(site.server.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 16)
    writer.write(head + want)
    async with asyncio.timeout(SECONDS):
        await reader.readuntil(b"PACK")  # it is in the middle of it, and reads no further
    found = programs(project["id"])
    assert found
    waiting = [ended(os.pidfd_open(pid)) for pid in found]
    writer.transport.abort()
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*waiting)
    assert programs(project["id"]) == []
