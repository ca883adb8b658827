"""Files of Git LFS, fetched by the real git-lfs from a server of its API, and put into workspaces."""

from __future__ import annotations

import os
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import DeadlineExceeded, Unavailable
from oubliette.records import ProjectRepository
from oubliette.runtime.repositories.git_errors import (
    LfsMissing,
    RepositoryError,
    RepositoryTooLarge,
)
from tests.git_hosts import checkout, commit, git
from tests.lfs_hosts import ATTRIBUTES, LfsHost, lfs_file, pointer_to
from tests.selection import core
from tests.unit.runtime.repositories.conftest import DEFAULT, PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.runtime.repositories.conftest import Bench

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
needs_lfs = pytest.mark.requires("git-lfs")
CONTENT = b"\x00\x01 many bytes\n" * 5000


@pytest.fixture
def host(tmp_path: Path) -> Iterator[LfsHost]:
    (tmp_path / "host").mkdir()
    with LfsHost(tmp_path / "host") as started:
        yield started


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkout(tmp_path / "source", {".gitattributes": ATTRIBUTES, "shop.py": "price = 1\n"})


async def workspace(bench: Bench, host: LfsHost, source: Path, **settings) -> Path:
    """Clone what was served, and make a workspace with the contents."""
    host.add("shop", source)
    return await made(bench, ProjectRepository(url=host.url("shop"), fetch_lfs=True), **settings)


async def made(bench: Bench, record: ProjectRepository, seconds: float = 60, **settings) -> Path:
    project = await bench.clone(record, **settings)
    assert project.repository is not None
    access = bench.access(**settings)
    clone = await access.new_workspace(project, DEFAULT)
    folder = await clone.make()
    content = await access.lfs_content(PROJECT, project.repository)
    files = await content.fetch(clone.tree, seconds=seconds, report=bench.said.append)
    await content.place(folder, files)
    return folder


@needs_lfs
async def test_a_workspace_has_the_contents_and_git_takes_them_for_unchanged(
    bench: Bench, host: LfsHost, source: Path
) -> None:
    commit(source, {"art/a.bin": host.keep(CONTENT), "b.bin": host.keep(b"small\n")})
    (source / "art" / "a.bin").chmod(0o755)
    commit(source, {}, "executable")
    folder = await workspace(bench, host, source)
    assert (folder / "art" / "a.bin").read_bytes() == CONTENT
    assert os.access(folder / "art" / "a.bin", os.X_OK)
    assert (folder / "b.bin").read_bytes() == b"small\n"
    assert git(folder, "status", "--short") == ""
    assert any("2 files of Git LFS" in each for each in bench.said)
    left = sorted(each.name for each in (bench.folder / PROJECT).iterdir())
    assert [each for each in left if each != folder.name] == ["lfs", "repository.git"]


@pytest.mark.whole
@needs_lfs
async def test_what_is_here_is_not_fetched_again(bench: Bench, host: LfsHost, source: Path) -> None:
    commit(source, {"a.bin": host.keep(CONTENT)})
    await workspace(bench, host, source)
    shutil.rmtree(bench.folder / PROJECT / "repository.git")
    before = len([path for path, _ in host.requests if path.endswith("/batch")])
    await made(bench, ProjectRepository(url=host.url("shop"), fetch_lfs=True))
    assert len([path for path, _ in host.requests if path.endswith("/batch")]) == before == 1


@needs_lfs
async def test_the_credential_of_the_host_is_used_and_is_nowhere_afterwards(
    bench: Bench, host: LfsHost, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(source, {"a.bin": host.keep(CONTENT)})
    host.password = "hunter2"
    monkeypatch.setenv("GIT_TOKEN_OF_TEST", "hunter2")
    credentials = (f"{host.host}=ada:env:GIT_TOKEN_OF_TEST",)
    folder = await workspace(bench, host, source, credentials=credentials)
    assert (folder / "a.bin").read_bytes() == CONTENT
    for place, _, names in os.walk(bench.folder):
        for name in names:
            with open(f"{place}/{name}", "rb") as file:
                assert b"hunter2" not in file.read(), name


@pytest.mark.whole
@needs_lfs
async def test_without_a_credential_the_error_says_so(
    bench: Bench, host: LfsHost, source: Path
) -> None:
    commit(source, {"a.bin": host.keep(CONTENT), ".lfsconfig": "[lfs]\n\turl = {}\n"})
    with LfsHost(host.folder, password="other") as closed:
        text = f"[lfs]\n\turl = {closed.url('shop')}/info/lfs\n"
        commit(source, {".lfsconfig": text}, "elsewhere")
        with pytest.raises(RepositoryError) as refused:
            await workspace(bench, host, source)
    assert refused.value.hint
    assert {given for _, given in closed.requests} == {None}


@pytest.mark.whole
@needs_lfs
async def test_another_server_that_the_repository_names_is_asked(
    bench: Bench, host: LfsHost, source: Path
) -> None:
    with LfsHost(host.folder) as other:
        text = f"[lfs]\n\turl = {other.url('any')}/info/lfs\n"
        commit(source, {"a.bin": other.keep(CONTENT), ".lfsconfig": text})
        folder = await workspace(bench, host, source)
    assert (folder / "a.bin").read_bytes() == CONTENT


URLS = ["file:///etc", "ssh://host.invalid/x", "ext::sh -c id", "--x"]


@pytest.mark.parametrize("url", core({"file:///etc", "ext::sh -c id"}, URLS))
@needs_lfs
async def test_a_server_of_a_kind_that_is_not_allowed_is_not_asked(
    bench: Bench, host: LfsHost, source: Path, url: str
) -> None:
    commit(source, {"a.bin": host.keep(CONTENT), ".lfsconfig": f"[lfs]\n\turl = {url}\n"})
    with pytest.raises(LfsMissing, match="lfsconfig is not followed"):
        await workspace(bench, host, source)


@needs_lfs
async def test_programs_that_the_repository_names_are_not_run(
    bench: Bench, host: LfsHost, source: Path, tmp_path: Path
) -> None:
    """Its settings, its filters and its hooks are files for us."""
    told = tmp_path / "told"
    run = f"sh -c 'touch {told}'"
    config = (
        f'[lfs]\n\tstandalonetransferagent = x\n[lfs "customtransfer.x"]\n\tpath = {run}\n'
        f'[filter "lfs"]\n\tsmudge = {run}\n[credential]\n\thelper = "!{run}"\n'
        f"[include]\n\tpath = {tmp_path}/more\n"
    )
    (tmp_path / "more").write_text(f"[core]\n\tsshCommand = {run}\n")
    commit(source, {"a.bin": host.keep(CONTENT), ".lfsconfig": config})
    folder = await workspace(bench, host, source)
    assert (folder / "a.bin").read_bytes() == CONTENT
    assert not told.exists()


@needs_lfs
async def test_content_that_is_not_what_its_name_says_is_refused(
    bench: Bench, host: LfsHost, source: Path
) -> None:
    commit(source, {"a.bin": host.keep(CONTENT, instead=CONTENT[::-1])})
    with pytest.raises(RepositoryError):
        await workspace(bench, host, source)
    assert not list((bench.folder / PROJECT).glob("lfs/objects/*/*/*"))


@pytest.mark.whole
@needs_lfs
async def test_content_that_the_server_does_not_have_is_an_error(
    bench: Bench, host: LfsHost, source: Path
) -> None:
    commit(source, {"a.bin": pointer_to(b"never sent")})
    with pytest.raises(LfsMissing, match="cannot be fetched") as missing:
        await workspace(bench, host, source)
    assert "leave lfs out" in (missing.value.hint or "")


@pytest.mark.whole
async def test_contents_above_the_limit_are_not_asked_for(
    bench: Bench, host: LfsHost, source: Path
) -> None:
    commit(source, {"a.bin": pointer_to(b"x" * 3_000_000)})
    with pytest.raises(RepositoryTooLarge, match="repositories.max_bytes"):
        await workspace(bench, host, source, max_bytes=2_000_000)
    assert not [path for path, _ in host.requests if path.endswith("/batch")]


@needs_lfs
async def test_a_server_that_sends_more_than_it_said_is_cut_off(
    bench: Bench, host: LfsHost, source: Path
) -> None:
    commit(source, {"a.bin": host.keep(b"small", instead=b"x" * 5_000_000)})
    with pytest.raises(RepositoryError):
        await workspace(bench, host, source, max_bytes=2_000_000)


@pytest.mark.whole
@needs_lfs
async def test_a_server_that_does_not_answer_is_given_up(
    bench: Bench, host: LfsHost, source: Path
) -> None:
    commit(source, {"a.bin": host.keep(CONTENT)})
    host.add("shop", source)
    record = ProjectRepository(url=host.url("shop"), fetch_lfs=True)
    host.silence = threading.Event()
    try:
        with pytest.raises(DeadlineExceeded, match="files of Git LFS"):
            await made(bench, record, seconds=0.2)
    finally:
        host.silence.set()


@pytest.mark.whole
async def test_text_that_only_looks_like_a_pointer_stays(
    bench: Bench, host: LfsHost, source: Path
) -> None:
    example = pointer_to(b"an example")
    commit(source, {"docs/example.txt": example, "text.bin": "no pointer\n"})
    folder = await workspace(bench, host, source)
    assert (folder / "docs" / "example.txt").read_text() == example
    assert (folder / "text.bin").read_text() == "no pointer\n"


@pytest.mark.whole
async def test_a_server_without_git_lfs_says_what_to_install(
    bench: Bench, host: LfsHost, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(source, {"a.bin": host.keep(CONTENT)})
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "git").symlink_to(shutil.which("git") or "")
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(Unavailable, match="git-lfs is not installed") as missing:
        await made(bench, ProjectRepository(url=_served(host, source), fetch_lfs=True))
    assert "apt-get install git-lfs" in (missing.value.hint or "")


def _served(host: LfsHost, source: Path) -> str:
    host.add("shop", source)
    return host.url("shop")


async def test_a_checkout_gives_its_contents_without_git_lfs(bench: Bench, source: Path) -> None:
    commit(source, {"a.bin": pointer_to(CONTENT), "b.bin": pointer_to(CONTENT)})
    kept = lfs_file(source / ".git" / "lfs", CONTENT)
    folder = await made(bench, ProjectRepository(path=str(source), fetch_lfs=True))
    assert (folder / "a.bin").read_bytes() == (folder / "b.bin").read_bytes() == CONTENT
    (folder / "a.bin").write_bytes(b"an agent's")
    assert kept.read_bytes() == CONTENT
    assert (folder / "b.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("instead", ["link", "pipe", "other"])
async def test_a_checkout_without_the_content_is_an_error(
    bench: Bench, source: Path, instead: str, tmp_path: Path
) -> None:
    """A link there is not followed, and a pipe not waited for."""
    commit(source, {"a.bin": pointer_to(CONTENT)})
    place = lfs_file(source / ".git" / "lfs", CONTENT)
    place.unlink()
    if instead == "link":
        (tmp_path / "elsewhere").write_bytes(CONTENT)
        place.symlink_to(tmp_path / "elsewhere")
    elif instead == "pipe":
        os.mkfifo(place)
    else:
        place.write_bytes(CONTENT[::-1])
    with pytest.raises(LfsMissing, match=r"does not have the content .* a\.bin"):
        await made(bench, ProjectRepository(path=str(source), fetch_lfs=True))
