"""Clones by a real git over HTTP from git's own server, and workspaces made of them."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import ConfigError, DeadlineExceeded, RuntimeFailure
from oubliette.records import ProjectRepository
from oubliette.runtime.repositories import git_errors, submodules, workspace_clone
from oubliette.runtime.repositories.project_repository import MAX_PACKS
from tests.git_hosts import ENVIRONMENT, GitHost, checkout, commit, git
from tests.unit.runtime.repositories.conftest import DEFAULT, PROJECT

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.records import Project
    from oubliette.runtime.repositories.access import Repositories
    from tests.unit.runtime.repositories.conftest import Bench

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
OTHER = "22222222-2222-4222-8222-222222222222"


async def test_a_clone_has_all_branches_and_workspaces_begin_at_its_head(
    bench: Bench, host: GitHost, source: Path
) -> None:
    git(source, "branch", "fix/test")
    git(source, "push", "--quiet", str(host.folder / "shop.git"), "fix/test")
    project = await bench.clone(ProjectRepository(url=host.url("shop")))
    assert project.repository is not None
    assert (project.repository.branch, project.repository.ready) == ("main", True)
    access = bench.access()
    bare = access.of(PROJECT, project.repository)
    assert {each.name for each in await bare.branches()} == {"main", "fix/test"}
    made = await (await access.new_workspace(project, DEFAULT)).make()
    assert (made / "shop.py").read_text() == "price = 1\n"
    assert git(made, "branch", "--show-current") == "oubliette/default\n"
    assert git(made, "remote", "get-url", "origin").strip() == host.url("shop")
    assert git(made, "status", "--short") == ""
    assert git(made, "rev-parse", "origin/fix/test") == git(source, "rev-parse", "fix/test")
    assert any(line.startswith("Receiving objects: 100 %") for line in bench.said)


async def test_workspaces_share_nothing_that_one_can_change(bench: Bench, host: GitHost) -> None:
    project = await bench.clone(ProjectRepository(url=host.url("shop")))
    access = bench.access()
    first = await (await access.new_workspace(project, DEFAULT)).make()
    for folder, _, names in os.walk(first / ".git" / "objects"):
        for name in names:
            path = f"{folder}/{name}"
            os.chmod(path, 0o644)
            with open(path, "wb") as file:
                file.write(b"spoilt")
    second = await (await access.new_workspace(project, OTHER)).make()
    assert not (second / ".git" / "objects" / "info" / "alternates").exists()
    git(second, "fsck", "--strict")
    assert git(second, "branch", "--show-current").strip() == f"oubliette/{OTHER}"


@pytest.mark.whole
async def test_a_branch_and_a_depth_are_what_is_fetched(
    bench: Bench, host: GitHost, source: Path
) -> None:
    for number in range(5):
        commit(source, {"shop.py": f"price = {number}\n"}, f"change {number}")
    git(source, "branch", "other")
    git(source, "push", "--quiet", str(host.folder / "shop.git"), "main", "other")
    project = await bench.clone(ProjectRepository(url=host.url("shop"), branch="main", depth=2))
    made = await (await bench.access().new_workspace(project, DEFAULT)).make()
    assert git(made, "rev-list", "--count", "HEAD").strip() == "2"
    git(made, "fsck")
    commit(source, {"shop.py": "price = 9\n"}, "change 9")
    git(source, "push", "--quiet", str(host.folder / "shop.git"), "main")
    assert project.repository is not None
    access = bench.access()
    bare = access.of(PROJECT, project.repository)
    assert await bare.fetch(await access.source(project.repository), seconds=60) == (("main",), ())


async def test_the_credential_of_a_host_goes_there_and_nowhere_else(
    bench: Bench, host: GitHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no file of the home either."""
    host.password = "hunter2"
    monkeypatch.setenv("GIT_TOKEN_OF_TEST", "hunter2")
    credentials = (f"{host.host}=ada:env:GIT_TOKEN_OF_TEST", "other.example=env:HOME")
    project = await bench.clone(ProjectRepository(url=host.url("shop")), credentials=credentials)
    await (await bench.access().new_workspace(project, DEFAULT)).make()
    assert {given for _, given in host.requests} == {None, "ada:hunter2"}
    found = subprocess.run(
        ["grep", "-rl", "hunter2", str(bench.folder)], capture_output=True, check=False
    )
    assert found.stdout == b""
    with GitHost(tmp_path / "host", password="hunter2") as other:
        with pytest.raises(git_errors.RepositoryDenied, match="wants a login"):
            await bench.clone(ProjectRepository(url=other.url("shop")), credentials=credentials)
        assert {given for _, given in other.requests} == {None}


async def test_a_wrong_password_is_told_without_it(
    bench: Bench, host: GitHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.password = "right"
    monkeypatch.setenv("GIT_TOKEN_OF_TEST", "hunter2")
    with pytest.raises(git_errors.RepositoryDenied, match="refuses the credential") as denied:
        await bench.clone(
            ProjectRepository(url=host.url("shop")),
            credentials=(f"{host.host}=env:GIT_TOKEN_OF_TEST",),
        )
    assert "hunter2" not in str(denied.value)


async def test_a_credential_that_is_not_set_is_named(bench: Bench, host: GitHost) -> None:
    with pytest.raises(ConfigError, match="NOT_SET_ANYWHERE"):
        await bench.clone(
            ProjectRepository(url=host.url("shop")),
            credentials=(f"{host.host}=env:NOT_SET_ANYWHERE",),
        )


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (403, git_errors.RepositoryDenied),
        (404, git_errors.RepositoryNotFound),
        (503, git_errors.RepositoryUnreachable),
        (429, git_errors.RepositoryUnreachable),
    ],
)
async def test_the_status_of_a_host_is_understood(
    bench: Bench, host: GitHost, status: int, kind: type
) -> None:
    host.status = status
    with pytest.raises(kind):
        await bench.clone(ProjectRepository(url=host.url("shop")))


async def test_what_cannot_be_cloned_is_said(bench: Bench, host: GitHost, tmp_path: Path) -> None:
    for url, kind in (
        (host.url("none"), git_errors.RepositoryNotFound),
        ("http://127.0.0.1:1/x.git", git_errors.RepositoryUnreachable),
        ("http://name.invalid/x.git", git_errors.RepositoryUnreachable),
        (host.url("shop").replace("http://", "https://"), git_errors.RepositoryUntrusted),
    ):
        with pytest.raises(kind):
            await bench.clone(ProjectRepository(url=url))
    with pytest.raises(git_errors.BranchNotFound, match="has no branch nope"):
        await bench.clone(ProjectRepository(url=host.url("shop"), branch="nope"))
    empty = tmp_path / "host" / "empty.git"
    git(tmp_path, "init", "--quiet", "--bare", str(empty))
    with pytest.raises(git_errors.RepositoryEmpty):
        await bench.clone(ProjectRepository(url=host.url("empty")))


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def test_a_certificate_has_to_be_trusted(
    bench: Bench, host: GitHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's owner names its authority in the environment."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with GitHost(tmp_path / "host", tls=context) as secured:
        record = ProjectRepository(url=secured.url("shop"))
        with pytest.raises(git_errors.RepositoryUntrusted, match="is not trusted"):
            await bench.clone(record)
        monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate))
        project = await bench.clone(record)
    assert project.repository is not None
    assert project.repository.ready


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")
async def test_ssh_asks_nothing_and_its_errors_are_understood(bench: Bench) -> None:
    for url in ("ssh://git@127.0.0.1:1/x.git", "git@name.invalid:x.git"):
        with pytest.raises(git_errors.RepositoryUnreachable):
            await bench.clone(ProjectRepository(url=url), protocols=("ssh",))


@pytest.mark.whole
async def test_a_repository_above_the_limit_is_refused(
    bench: Bench, host: GitHost, source: Path
) -> None:
    (source / "big").write_bytes(os.urandom(1 << 20))
    commit(source, {}, "big")
    git(source, "push", "--quiet", str(host.folder / "shop.git"), "main")
    with pytest.raises(git_errors.RepositoryTooLarge, match="max_bytes"):
        await bench.clone(ProjectRepository(url=host.url("shop")), max_bytes=256 * 1024)


async def test_a_clone_that_takes_too_long_is_ended(bench: Bench, host: GitHost) -> None:
    with pytest.raises(DeadlineExceeded, match="clone_seconds"):
        await bench.clone(ProjectRepository(url=host.url("shop")), seconds=0.001)


async def test_uncommitted_changes_come_as_such_and_the_checkout_is_only_read(
    bench: Bench, source: Path
) -> None:
    commit(source, {".gitignore": "*.log\n", "gone": "x\n"})
    planted = source / "planted"
    (source / ".git" / "hooks" / "post-index-change").write_text(f"#!/bin/sh\ntouch {planted}\n")
    (source / ".git" / "hooks" / "post-index-change").chmod(0o755)
    git(source, "config", "core.fsmonitor", f"touch {planted}; false")
    git(source, "config", "filter.evil.clean", f"touch {planted}; cat")
    git(source, "config", "uploadpack.packObjectsHook", f"touch {planted};")
    (source / ".gitattributes").write_text("*.py filter=evil\n")
    (source / "shop.py").write_text("price = 7\n")
    (source / "new.py").write_text("new\n")
    (source / "x.log").write_text("ignored\n")
    (source / "gone").unlink()
    index = (source / ".git" / "index").read_bytes()
    project = await bench.clone(ProjectRepository(path=str(source), dirty=True))
    made = await (await bench.access().new_workspace(project, DEFAULT)).make()
    status = git(made, "status", "--short", "--untracked-files=all").splitlines()
    assert sorted(status) == [" D gone", " M shop.py", "?? .gitattributes", "?? new.py"]
    assert (made / "shop.py").read_text() == "price = 7\n"
    assert not (made / "x.log").exists()
    assert git(made, "log", "-1", "--format=%s").strip() == "a change"
    assert not planted.exists()
    assert (source / ".git" / "index").read_bytes() == index
    assert (
        subprocess.run(
            ["git", "remote"], cwd=made, env=ENVIRONMENT, capture_output=True, check=True
        ).stdout
        == b""
    ), "the server's folder is nobody's origin"


async def test_a_checkout_without_dirty_comes_as_it_was_committed(
    bench: Bench, source: Path
) -> None:
    (source / "shop.py").write_text("price = 7\n")
    project = await bench.clone(ProjectRepository(path=str(source)))
    made = await (await bench.access().new_workspace(project, DEFAULT)).make()
    assert (made / "shop.py").read_text() == "price = 1\n"


async def test_a_checkout_of_no_branch_is_cloned_at_its_commit(bench: Bench, source: Path) -> None:
    first = git(source, "rev-parse", "HEAD").strip()
    commit(source, {"shop.py": "price = 2\n"})
    git(source, "checkout", "--quiet", "--detach", first)
    project = await bench.clone(ProjectRepository(path=str(source)))
    assert project.repository is not None
    assert project.repository.branch is None
    made = await (await bench.access().new_workspace(project, DEFAULT)).make()
    assert git(made, "rev-parse", "HEAD").strip() == first


async def test_a_hostile_repository_runs_nothing_and_leaves_its_folder_alone(
    bench: Bench, tmp_path: Path
) -> None:
    """Filters without configuration, links out of the tree, and a folder that is a link."""
    source = checkout(tmp_path / "hostile")
    (source / ".gitattributes").write_text("* filter=evil diff=evil merge=evil text\n")
    (source / "out").symlink_to(tmp_path)
    (source / ".gitmodules").write_text('[submodule "x"]\n\tpath = x\n\turl = ext::sh -c id\n')
    commit(source, {"a": "b\n"})
    project = await bench.clone(ProjectRepository(path=str(source)))
    made = await (await bench.access().new_workspace(project, DEFAULT)).make()
    assert (made / "a").read_text() == "b\n"
    assert (made / "out").is_symlink()
    assert list((made / ".git" / "hooks").iterdir()) == []
    config = (made / ".git" / "config").read_text()
    assert "evil" not in config
    assert "submodule" not in config


async def with_submodule(access: Repositories, project: Project) -> Path:
    assert project.repository is not None
    clone = await access.new_workspace(project, DEFAULT)
    made = await clone.make()
    source = await access.source(project.repository, submodules=True)
    await clone.fetch_submodules(source, seconds=60)
    return made


@pytest.mark.whole
async def test_submodules_come_with_their_own_and_survive_the_move(
    bench: Bench, host: GitHost, source: Path, tmp_path: Path
) -> None:
    """They are fetched with the credential of the host, and have no trace of it."""
    inner = checkout(tmp_path / "inner", {"inner.txt": "deep\n"})
    host.add("inner", inner)
    library = checkout(tmp_path / "library", {"lib.txt": "lib\n"})
    git(library, "submodule", "--quiet", "add", host.url("inner"), "inner")
    commit(library, {})
    host.add("library", library)
    git(source, "submodule", "--quiet", "add", host.url("library"), "libs/one")
    git(source, "config", "--file", ".gitmodules", "submodule.libs/one.url", "./../library.git")
    commit(source, {})
    git(source, "push", "--quiet", str(host.folder / "shop.git"), "main")
    project = await bench.clone(ProjectRepository(url=host.url("shop"), submodules=True))
    made = await with_submodule(bench.access(), project)
    moved = made.rename(tmp_path / "moved")
    assert (moved / "libs" / "one" / "inner" / "inner.txt").read_text() == "deep\n"
    assert git(moved, "submodule", "status", "--recursive").count("libs/one") == 2
    assert git(moved, "status", "--short") == ""


@pytest.mark.whole
async def test_a_submodule_that_cannot_be_fetched_is_named(
    bench: Bench, host: GitHost, source: Path, tmp_path: Path
) -> None:
    host.add("library", checkout(tmp_path / "library"))
    git(source, "submodule", "--quiet", "add", host.url("library"), "lib")
    commit(source, {})
    shutil.rmtree(host.folder / "library.git")
    git(source, "push", "--quiet", str(host.folder / "shop.git"), "main")
    project = await bench.clone(ProjectRepository(url=host.url("shop"), submodules=True))
    with pytest.raises(git_errors.RepositoryNotFound, match=host.url("library")):
        await with_submodule(bench.access(), project)


@pytest.mark.parametrize("url", ["ext::sh -c touch% {planted}", "file://{folder}", "{folder}"])
async def test_a_submodule_cannot_make_the_server_run_or_read_anything(
    bench: Bench, source: Path, tmp_path: Path, url: str
) -> None:
    secret = checkout(tmp_path / "secret")
    planted = tmp_path / "planted"
    git(source, "submodule", "--quiet", "add", str(secret), "lib")
    bad = url.format(planted=planted, folder=secret)
    git(source, "config", "--file", ".gitmodules", "submodule.lib.url", bad)
    commit(source, {})
    project = await bench.clone(ProjectRepository(path=str(source), submodules=True))
    with pytest.raises(git_errors.RepositoryError, match="does not allow"):
        await with_submodule(bench.access(), project)
    assert not planted.exists()


def nest(source: Path, host: GitHost, times: int) -> None:
    """Make each commit of a repository name the one before it twice, as a submodule."""
    url = host.url("library")
    for _ in range(times):
        last = git(source, "rev-parse", "HEAD").strip()
        name_submodules(source, {"a": (url, last), "b": (url, last)})


def name_submodules(source: Path, named: dict[str, tuple[str, str]]) -> None:
    """Commit submodules: the URL and the commit of each, by its path."""
    parts = (
        f'[submodule "{path}"]\n\tpath = {path}\n\turl = {url}\n'
        for path, (url, _) in named.items()
    )
    (source / ".gitmodules").write_text("".join(parts))
    git(source, "add", ".gitmodules")
    for path, (_, commit_id) in named.items():
        git(source, "update-index", "--add", "--cacheinfo", f"160000,{commit_id},{path}")
    git(source, "commit", "--quiet", "-m", "submodules")


async def test_submodules_without_end_are_refused(
    bench: Bench, host: GitHost, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty commits would be 2^30 submodules."""
    monkeypatch.setattr(submodules, "MAX_SUBMODULES", 4)
    nest(source, host, 30)
    host.add("library", source)
    project = await bench.clone(ProjectRepository(path=str(source), submodules=True))
    with pytest.raises(git_errors.RepositoryTooLarge, match="more than 4 submodules"):
        await with_submodule(bench.access(), project)


async def test_the_files_of_a_submodule_are_counted_before_they_are_written(
    bench: Bench, host: GitHost, source: Path
) -> None:
    """A folder that is ten times the same folder, ten times over, is a few objects."""
    library = checkout(source.with_name("library"))
    made = git(library, "rev-parse", "HEAD:README").strip()
    mode = "100644 blob"
    for _ in range(10):
        lines = "".join(f"{mode} {made}\t{number}\n" for number in range(10))
        made, mode = git(library, "mktree", given=lines.encode()).strip(), "040000 tree"
    git(library, "reset", "--quiet", "--soft", git(library, "commit-tree", made, "-m", "x").strip())
    host.add("library", library)
    last = git(library, "rev-parse", "HEAD").strip()
    name_submodules(source, {"lib": (host.url("library"), last)})
    project = await bench.clone(ProjectRepository(path=str(source), submodules=True))
    with pytest.raises(git_errors.RepositoryTooLarge, match=r"repositories\.max_bytes"):
        await with_submodule(bench.access(max_bytes=10_000_000), project)


async def test_submodules_that_take_too_long_are_refused_with_the_time_of_all(
    bench: Bench, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(*_: object) -> None:
        raise DeadlineExceeded("the step took more than 0.1 s")

    project = await bench.clone(ProjectRepository(path=str(source), submodules=True))
    monkeypatch.setattr(submodules, "_commits", late)
    with pytest.raises(DeadlineExceeded, match="submodules .* took more than 60 s") as refused:
        await with_submodule(bench.access(), project)
    assert refused.value.hint is not None
    assert "repositories.clone_seconds" in refused.value.hint


async def test_what_submodules_send_is_limited_together(
    bench: Bench, host: GitHost, source: Path
) -> None:
    """Steps: two of 300 kB each, whose paths are patterns of git; half their size, then enough."""
    named: dict[str, tuple[str, str]] = {}
    for name in ("l*", "lib"):
        library = checkout(source.with_name(f"library{len(named)}"))
        (library / "data").write_bytes(os.urandom(300_000))
        commit(library, {"README": "a library\n"})
        host.add(library.name, library)
        last = git(library, "rev-parse", "HEAD").strip()
        named[name] = (host.url(library.name), last)
    name_submodules(source, named)
    project = await bench.clone(ProjectRepository(path=str(source), submodules=True))
    with pytest.raises(git_errors.RepositoryTooLarge, match="together larger") as refused:
        await with_submodule(bench.access(max_bytes=500_000), project)
    assert refused.value.hint is not None
    assert "leave submodules out" in refused.value.hint
    made = await with_submodule(bench.access(max_bytes=2_000_000), project)
    assert [(made / each / "data").stat().st_size for each in named] == [300_000, 300_000]


@pytest.mark.whole
async def test_many_fetches_become_one_pack_and_lose_nothing(bench: Bench, source: Path) -> None:
    project = await bench.clone(ProjectRepository(path=str(source)))
    assert project.repository is not None
    access = bench.access()
    bare = access.of(PROJECT, project.repository)
    assert not await bare.tidy()
    git(bare.folder, "config", "fetch.unpackLimit", "1")
    for number in range(MAX_PACKS + 1):
        commit(source, {"shop.py": f"price = {number}\n"}, f"change {number}")
        git(bare.folder, "fetch", "-q", str(source), "+main:refs/remotes/origin/main")
    unneeded = git(bare.folder, "hash-object", "-w", "--stdin", given=b"unneeded").strip()
    refs = git(bare.folder, "for-each-ref")
    assert await bare.tidy()
    assert len(list((bare.folder / "objects" / "pack").glob("*.pack"))) == 1
    assert git(bare.folder, "for-each-ref") == refs
    git(bare.folder, "fsck", "--strict", "--full")
    asked = git(bare.folder, "cat-file", "--batch-check", given=unneeded.encode())
    assert asked.endswith("missing\n")


@pytest.mark.parametrize("used", [True, False])
async def test_files_of_git_lfs_are_known(bench: Bench, source: Path, used: bool) -> None:
    line = "*.bin filter=lfs diff=lfs merge=lfs -text\n" if used else "*.py text\n"
    commit(source, {"assets/.gitattributes": line})
    project = await bench.clone(ProjectRepository(path=str(source)))
    assert project.repository is not None
    assert project.repository.lfs is used


async def test_a_path_that_no_checkout_can_have_is_named(bench: Bench, source: Path) -> None:
    """git takes the link for `.gitmodules`, as Windows would."""
    (source / "gitmod~1").symlink_to("/etc/passwd")
    git(source, "-c", "core.protectNTFS=false", "add", "--all")
    git(source, "-c", "core.protectNTFS=false", "commit", "--quiet", "-m", "a short name")
    project = await bench.clone(ProjectRepository(path=str(source)))
    clone = await bench.access().new_workspace(project, DEFAULT)
    with pytest.raises(RuntimeFailure, match=r"the path gitmod~1, which git takes") as raised:
        await clone.make()
    assert "rename it in the repository" in raised.value.hint
    assert not clone.folder.exists()


@pytest.mark.parametrize("other", ["SHOP.py", "Docs/b.md", "unlike.py"])
async def test_paths_that_are_one_for_the_file_system_are_named(
    bench: Bench, source: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setattr(workspace_clone, "folds_case", lambda folder: folder.exists())
    commit(source, {other: "1\n"})
    project = await bench.clone(ProjectRepository(path=str(source)))
    clone = await bench.access().new_workspace(project, DEFAULT)
    if other == "unlike.py":
        assert (await clone.make() / other).exists()
        return
    with pytest.raises(git_errors.PathsClash, match="are one path") as raised:
        await clone.make()
    assert f"{other.partition('/')[0]} and " in raised.value.message
    assert "rename one" in raised.value.hint
    assert not clone.folder.exists()


async def test_a_workspace_that_cannot_be_made_leaves_nothing(bench: Bench, source: Path) -> None:
    project = await bench.clone(ProjectRepository(path=str(source)))
    access = bench.access()
    clone = await access.new_workspace(project, OTHER)
    pack = next((bench.folder / PROJECT / "repository.git" / "objects").rglob("*.pack"))
    pack.chmod(0o644)
    pack.write_bytes(b"broken")
    with pytest.raises(Exception, match="git"):
        await clone.make()
    assert not clone.folder.exists()


async def test_a_workspace_has_all_objects_itself(bench: Bench, source: Path) -> None:
    """It is made while they are still being copied."""
    (source / "large").write_bytes(os.urandom(5_000_000))
    commit(source, {"b": "b\n"})
    project = await bench.clone(ProjectRepository(path=str(source)))
    clone = await bench.access().new_workspace(project, project.default_workspace_id)
    made = await clone.make()
    shutil.rmtree(bench.folder / PROJECT / "repository.git")
    git(made, "fsck", "--strict", "--full")
    assert git(made, "status", "--short") == ""
    assert not (made / ".git" / "objects" / "info" / "alternates").exists()
