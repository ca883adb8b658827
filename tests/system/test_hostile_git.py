"""What a hostile repository may not do to the server: have it run, read or write anything.

Each way in is planted with a canary: a program that leaves a file where only the server could. The
server then does everything with the repository that clients can ask for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.testing.server import ServerProcess
from tests.callers import ToolFailed
from tests.git_hosts import ENVIRONMENT, GIT, GitHost, checkout, commit, git
from tests.images import ensure_image
from tests.selection import core
from tests.system.conftest import ROOMY
from tests.system.real_agents import remove_containers
from tests.system.site import Site
from tests.system.test_git_fetch import address, done

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(GIT is None, reason="needs git"),
]
HOOKS = (
    *("pre-commit", "post-commit", "post-checkout", "post-merge", "post-index-change"),
    *("reference-transaction", "pre-auto-gc", "post-rewrite", "pre-push", "fsmonitor-watchman"),
    *("update", "pre-receive", "post-receive", "post-update", "proc-receive"),
)
SECRET = "a secret of the machine"


class Canary:
    """Programs that leave a file each when they are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sung = folder / "sung"
        self.sung.mkdir(parents=True)

    def program(self, way: str) -> Path:
        made = self.folder / f"{way}.sh"
        made.write_text(f"#!/bin/sh\ntouch {self.sung}/{way}\ncat\n")
        made.chmod(0o755)
        return made

    def found(self) -> list[str]:
        return sorted(each.name for each in self.sung.iterdir())


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return Canary(tmp_path / "canary")


def plant(own: Path, canary: Canary) -> None:
    """Give a repository, by its `.git`, everything that git would run or read."""
    for hook in HOOKS:
        shutil.copy(canary.program(f"hook-{hook}"), own / "hooks" / hook)
    moved = own / "more-hooks"
    moved.mkdir()
    for hook in HOOKS:
        shutil.copy(canary.program(f"moved-{hook}"), moved / hook)
    lines = [
        "[core]",
        f"fsmonitor = {canary.program('fsmonitor')}",
        f"pager = {canary.program('pager')}",
        f"editor = {canary.program('editor')}",
        f"sshCommand = {canary.program('ssh')}",
        f"askPass = {canary.program('askpass')}",
        f"alternateRefsCommand = {canary.program('alternates')}",
        f"hooksPath = {moved}",
        '[filter "harm"]',
        f"clean = {canary.program('clean')}",
        f"smudge = {canary.program('smudge')}",
        f"process = {canary.program('process')}",
        '[diff "harm"]',
        f"textconv = {canary.program('textconv')}",
        f"command = {canary.program('diff')}",
        '[merge "harm"]',
        f"driver = {canary.program('merge')}",
        "[diff]",
        f"external = {canary.program('external')}",
        "[credential]",
        f"helper = {canary.program('helper')}",
        "[uploadpack]",
        f"packObjectsHook = {canary.program('pack')}",
        "[gpg]",
        f"program = {canary.program('gpg')}",
        "[log]",
        "showSignature = true",
        '[remote "origin"]',
        f"uploadpack = {canary.program('upload')}",
        "vcs = harm",
    ]
    with (own / "config").open("a") as config:
        config.write("\n".join(lines) + "\n")
    (own / "info").mkdir(exist_ok=True)
    (own / "info" / "attributes").write_text("* filter=harm diff=harm merge=harm\n")


def hostile_files(folder: Path, secret: Path) -> None:
    """Files that a tree may well have."""
    (folder / ".gitattributes").write_text("* filter=harm diff=harm merge=harm ident text\n")
    (folder / "README").write_text("$Id$\n")
    (folder / "readme").write_text("the same by another case\n")
    (folder / "caf\u00e9").write_text("composed\n")
    (folder / "cafe\u0301").write_text("decomposed\n")
    (folder / "secret").symlink_to(secret)
    (folder / "root").symlink_to("/")
    (folder / "-upload-pack=x").write_text("an option\n")
    (folder / ".gitconfig").write_text("[core]\n\tfsmonitor = /bin/false\n")
    (folder / ".mailmap").write_text("Eve <eve@example.org> <ada@example.invalid>\n")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret-of-the-machine"
    file.write_text(SECRET)
    return file


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    (tmp_path / "host").mkdir()
    with GitHost(tmp_path / "host") as started:
        yield started


@pytest.fixture(
    scope="module",
    params=["process", pytest.param("docker", marks=pytest.mark.requires("docker"))],
)
async def place(request: pytest.FixtureRequest, zygote: Any) -> AsyncIterator[Site]:
    settings: dict[str, object] = {
        **ROOMY,
        "containers.runtime": request.param,
        "snapshots.mode": "on",
        "agents.default": "scripted",
        "repositories.protocols": "http,https",
        "repositories.folders": "/tmp",
        "repositories.max_bytes": 50_000_000,
    }
    if request.param == "docker":
        settings |= {"containers.image": ensure_image("docker"), "containers.network": "none"}
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        try:
            await server.start()
            site = Site(server)
            async with site.eyes:
                await site.open()
                yield site
                await site.tidy()
        finally:
            await server.kill()
            if request.param == "docker":
                remove_containers("docker", server.instance())


async def everything(site: Site, caller: Any, project: dict[str, Any], workspace: Path) -> str:
    """Have the server do all that it does with what is in a workspace; return what it answered."""
    answers: list[Any] = []
    agent = await site.spawn(caller, "exec echo one > one", project_id=project["id"])
    await agent.turn(60)
    (workspace / "later").write_text("planted later\n")
    await agent.say("exec echo two > one; rm -f README")
    await agent.turn(60)
    one = agent.session_id

    async def ask(tool: str, **arguments: Any) -> None:
        answers.append(await caller.call(tool, **arguments))

    await ask("session_diff", session_id=one)
    await ask("session_diff", session_id=one, turn=2)
    await ask("session_log", session_id=one)
    await ask("checkpoint", session_id=one, name="here")
    for form in ("patch", "bundle"):
        await ask("session_export", session_id=one, format=form)
    await ask("session_restore", session_id=one, turn=1)
    other = await site.spawn(
        caller, "exec echo three > one", project_id=project["id"], create_workspace=True
    )
    await other.turn(60)
    await ask("session_compare", project_id=project["id"], session_ids=[one, other.session_id])
    if project.get("repository"):
        await ask("repository_fetch", project_id=project["id"])
        await ask("repository_branches", project_id=project["id"])
    return repr(answers)


async def fetched(site: Site, project: dict[str, Any], folder: Path) -> None:
    """Have a client of git fetch everything."""
    git(folder.parent, "init", "--quiet", str(folder))
    url = address(site, project["id"], site.principal("read"))
    await done(folder, "fetch", "--quiet", url, "refs/*:refs/fetched/*")


def workspace_of(site: Site, project: dict[str, Any]) -> Path:
    top = site.server.home_of(project["id"]) / "projects" / project["id"] / "workspaces"
    return top / project["default_workspace_id"]


async def test_a_planted_repository_would_run_its_programs(canary: Canary, tmp_path: Path) -> None:
    """Otherwise the tests below would prove nothing."""
    planted = checkout(tmp_path / "planted")
    hostile_files(planted, tmp_path)
    plant(planted / ".git", canary)
    subprocess.run(
        ["git", "status"], cwd=planted, env=ENVIRONMENT, capture_output=True, check=False
    )
    assert canary.found()


async def test_a_repository_with_hostile_files_is_cloned_and_worked_on(
    place, host, canary, secret, tmp_path
) -> None:
    source = checkout(tmp_path / "source")
    hostile_files(source, secret)
    commit(source, {"more": "x\n"})
    plant(host.add("shop", source), canary)
    async with place.caller("http-auto") as caller:
        project = await place.new_project(repository={"url": host.url("shop")})
        canary_of_host = canary.found()  # its own git is not ours
        answers = await everything(place, caller, project, workspace_of(place, project))
        await fetched(place, project, tmp_path / "mine")
    assert canary.found() == canary_of_host == []
    assert SECRET not in answers
    assert secret.read_text() == SECRET


@pytest.mark.whole
@pytest.mark.parametrize("dirty", [True, False])
async def test_a_checkout_of_the_machine_with_a_planted_git_is_only_read(
    place, canary, secret, tmp_path, dirty
) -> None:
    source = checkout(tmp_path / "source")
    hostile_files(source, secret)
    commit(source, {"more": "x\n"})
    (source / "README").write_text("not committed\n")
    plant(source / ".git", canary)
    folder = Path(os.path.realpath(source))
    if not folder.is_relative_to("/tmp"):
        pytest.skip("the server of this module clones folders below /tmp alone")
    async with place.caller("http-auto") as caller:
        project = await place.new_project(repository={"path": str(folder), "dirty": dirty})
        answers = await everything(place, caller, project, workspace_of(place, project))
        await fetched(place, project, tmp_path / "mine")
    assert canary.found() == []
    assert SECRET not in answers


def as_gitfile(workspace: Path, outside: Path) -> None:
    shutil.rmtree(workspace / ".git")
    (workspace / ".git").write_text(f"gitdir: {outside}\n")


def as_link(workspace: Path, outside: Path) -> None:
    shutil.rmtree(workspace / ".git")
    (workspace / ".git").symlink_to(outside)


def with_alternates(workspace: Path, outside: Path) -> None:
    info = workspace / ".git" / "objects" / "info"
    info.mkdir(exist_ok=True)
    (info / "alternates").write_text(f"{outside}/objects\n")
    (workspace / ".git" / "commondir").write_text(f"{outside}\n")


def nested(workspace: Path, outside: Path) -> None:
    shutil.copytree(outside, workspace / "inner" / ".git", symlinks=True)
    (workspace / "inner" / "file").write_text("in a repository in a repository\n")
    (workspace / "module").mkdir()
    (workspace / "module" / ".git").write_text(f"gitdir: {outside}\n")
    text = '[submodule "m"]\n\tpath = module\n\turl = ext::sh -c id\n\tupdate = !touch x\n'
    (workspace / ".gitmodules").write_text(text)


def hooks_alone(workspace: Path, outside: Path) -> None:
    del workspace, outside


def owned(workspace: Path) -> None:
    """Have the agent's user own it all, as if the agent had made it."""
    owner = workspace.stat()
    for folder, inner, names in os.walk(workspace):
        for each in (".", *inner, *names):
            os.chown(Path(folder, each), owner.st_uid, owner.st_gid, follow_symlinks=False)


TRICKS = [hooks_alone, as_gitfile, as_link, with_alternates, nested]


@pytest.mark.parametrize("trick", core({as_gitfile}, TRICKS))
async def test_what_an_agent_makes_of_its_git_is_data(
    place, host, canary, secret, tmp_path, trick
) -> None:
    host.add("shop", checkout(tmp_path / "source"))
    outside = checkout(tmp_path / "outside", {"kept": "outside\n"})
    plant(outside / ".git", canary)
    before = {each: each.stat().st_mtime_ns for each in outside.rglob("*") if each.is_file()}
    async with place.caller("http-auto") as caller:
        project = await place.new_project(repository={"url": host.url("shop")})
        workspace = workspace_of(place, project)
        plant(workspace / ".git", canary)
        hostile_files(workspace, secret)
        trick(workspace, outside / ".git")
        owned(workspace)
        answers = await everything(place, caller, project, workspace)
        await fetched(place, project, tmp_path / "mine")
    assert canary.found() == []
    assert SECRET not in answers
    after = {each: each.stat().st_mtime_ns for each in outside.rglob("*") if each.is_file()}
    assert after == before
    refs = git(tmp_path / "mine", "for-each-ref", "--format=%(refname)").split()
    shown = [git(tmp_path / "mine", "ls-tree", "-r", "--name-only", each) for each in refs]
    assert not any(f"{part}.git/" in text for text in shown for part in ("", "/"))


def loose(bare: Path, kind: str, content: bytes) -> str:
    """Store an object as git would never make it."""
    done_ = subprocess.run(
        ["git", "hash-object", "-w", "-t", kind, "--literally", "--stdin"],
        cwd=bare, env=ENVIRONMENT, input=content, capture_output=True, check=True,
    )  # fmt: skip
    return done_.stdout.decode().strip()


def bare_with_entry(host: GitHost, name: str, source: Path, entry: str, below: bool) -> None:
    """A repository whose newest tree has an entry of this name, a file or a folder with a file."""
    bare = host.add(name, source)
    blob = loose(bare, "blob", b"#!/bin/sh\nescaped\n")
    mode, made = b"100755", blob
    if below:
        mode, made = b"40000", loose(bare, "tree", b"100755 escaped\0" + bytes.fromhex(blob))
    tree = loose(bare, "tree", mode + b" " + entry.encode() + b"\0" + bytes.fromhex(made))
    text = (
        f"tree {tree}\nauthor E <e@example.org> 1 +0000\ncommitter E <e@example.org> 1 +0000\n\nx\n"
    )
    made_commit = loose(bare, "commit", text.encode())
    git(bare, "update-ref", "refs/heads/main", made_commit)


@pytest.mark.parametrize(
    ("entry", "below"),
    [
        ("..", True),
        pytest.param(".", True, marks=pytest.mark.whole),
        (".git", True),
        pytest.param(".GIT", True, marks=pytest.mark.whole),
        ("../../escaped", False),
        pytest.param("/tmp/escaped", False, marks=pytest.mark.whole),
        pytest.param("a/../../../escaped", False, marks=pytest.mark.whole),
    ],
)
async def test_a_tree_that_leads_out_of_the_workspace_writes_nothing_there(
    place, host, tmp_path, entry, below
) -> None:
    bare_with_entry(host, "shop", checkout(tmp_path / "source"), entry, below)
    home = place.server.home
    with contextlib.suppress(ToolFailed):
        project = await place.new_project(repository={"url": host.url("shop")})
        workspace = workspace_of(place, project)
        assert not (workspace / ".git" / "escaped").exists()
    escaped = [each for each in home.rglob("escaped") if "/workspaces/" not in str(each)]
    assert escaped == []
    assert not Path("/tmp/escaped").exists()
    assert not (tmp_path / "escaped").exists()


def bomb(host: GitHost, source: Path, size: int) -> None:
    """A blob that is small on the way and large where it is written."""
    bare = host.add("bomb", source)
    blob = host.folder / "blob"
    with blob.open("wb") as file:
        file.truncate(size)
    name = git(bare, "hash-object", "-w", str(blob)).strip()
    blob.unlink()
    tree = git(bare, "mktree", given=f"100644 blob {name}\tlarge\n".encode()).strip()
    made = git(bare, "commit-tree", tree, "-m", "small").strip()
    git(bare, "update-ref", "refs/heads/main", made)


@pytest.mark.whole
async def test_a_file_that_is_large_only_when_it_is_unpacked_ends_at_the_limit(
    place, host, tmp_path
) -> None:
    """`repositories.max_bytes` is 50 MB here, and the file has 400 MB."""
    bomb(host, checkout(tmp_path / "source"), 400_000_000)
    with pytest.raises(ToolFailed, match="max_bytes"):
        await place.new_project(repository={"url": host.url("bomb")})


async def test_a_pack_that_claims_more_than_it_has_is_refused(place, host, tmp_path) -> None:
    """Its head promises four thousand million objects."""
    bare = host.add("shop", checkout(tmp_path / "source"))
    git(bare, "repack", "-a", "-d", "-q")
    (pack,) = (bare / "objects" / "pack").glob("*.pack")
    content = bytearray(pack.read_bytes())
    content[8:12] = b"\xff\xff\xff\xff"
    pack.chmod(0o644)
    pack.write_bytes(bytes(content) + zlib.compress(b"\0" * 1_000_000))
    with pytest.raises(ToolFailed):
        await place.new_project(repository={"url": host.url("shop")})


async def test_a_tree_that_names_itself_very_often_is_refused(place, host, tmp_path) -> None:
    """Ten folders that are the same ten folders, ten times over: a few objects, 10^10 files."""
    bare = host.add("bomb", checkout(tmp_path / "source"))
    made = loose(bare, "blob", b"x")
    mode = "100644 blob"
    for _ in range(10):
        lines = "".join(f"{mode} {made}\t{number}\n" for number in range(10))
        made, mode = git(bare, "mktree", given=lines.encode()).strip(), "040000 tree"
    git(bare, "update-ref", "refs/heads/main", git(bare, "commit-tree", made, "-m", "x").strip())
    with pytest.raises(ToolFailed, match="max_bytes"):
        await place.new_project(repository={"url": host.url("bomb")})


@pytest.mark.whole
async def test_very_many_files_in_one_folder_are_taken(place, host, tmp_path) -> None:
    host.add("shop", checkout(tmp_path / "source"))
    async with place.caller("http-auto") as caller:
        project = await place.new_project(repository={"url": host.url("shop")})
        prompt = "exec mkdir many && cd many && seq 20000 | xargs touch && echo done"
        agent = await place.spawn(caller, prompt, project_id=project["id"])
        assert (await agent.outcome(120))["stdout"] == "done\n"
        log = await caller.call("session_log", session_id=agent.session_id)
        assert log["turns"][-1]["turn"] == 1
        changed = await caller.call("session_diff", session_id=agent.session_id, format="stat")
        assert changed["files"] == 20_000
