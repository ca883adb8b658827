"""Files of a workspace as Python programs use them: in process, on a server, without a loop."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import oubliette
from oubliette.api.files import file_calls
from tests.system.python_api import DOORS, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.system.site import Site

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

SETTINGS = {"agents.default": "scripted"}


@pytest.fixture(autouse=True)
def no_leaked_threads():
    """The embedded system is the module's, and starts threads when it needs them."""


@pytest.fixture(scope="module", params=DOORS)
async def project(request: pytest.FixtureRequest, shared_site: Site) -> AsyncIterator[Any]:
    async with opened(request.param, shared_site) as ob:
        yield await ob.create_project("files", init_git=False)


async def test_a_file_is_written_read_and_deleted(project: Any) -> None:
    files = project.workspace
    version = await files.write("notes/today.txt", "Grüße")
    assert await files.read("notes/today.txt") == "Grüße".encode()
    (info,) = await files.list("notes")
    assert (info.name, info.kind, info.size) == ("today.txt", "file", 7)
    with pytest.raises(oubliette.Conflict):
        await files.write("notes/today.txt", b"x", expected_version="other")
    assert await files.write("notes/today.txt", b"x", expected_version=version) != version
    with pytest.raises(oubliette.AlreadyExists):
        await files.write("notes/today.txt", b"y", expected_version="absent")
    assert await files.delete("notes", recursive=True) == 2
    with pytest.raises(oubliette.NotFound):
        await files.read("notes/today.txt")


@pytest.mark.parametrize(
    "size", [0, 1, file_calls.PIECE - 1, file_calls.PIECE, file_calls.PIECE + 1, 1_700_000]
)
async def test_content_of_any_size_comes_back(project: Any, size: int) -> None:
    content = os.urandom(size)
    await project.workspace.write("sized.bin", content)
    assert await project.workspace.read("sized.bin") == content
    assert [each.name for each in await project.workspace.list()].count("sized.bin") == 1


async def test_a_folder_goes_in_and_comes_out_as_it_was(project: Any, tmp_path: Path) -> None:
    source = tmp_path / "data"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "one.txt").write_text("one")
    (source / "deep" / "er" / "two.bin").write_bytes(os.urandom(600_000))
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / os.fsdecode(b"caf\xe9")).write_text("latin")
    (source / "link").symlink_to("one.txt")
    os.mkfifo(source / "pipe")
    seen: list[str] = []
    copied = await project.workspace.upload(
        source, "in/data", on_file=lambda path, _: seen.append(path)
    )
    assert (copied.files, len(seen)) == (4, 4)
    assert sorted(copied.skipped) == [str(source / "link"), str(source / "pipe")]
    await project.exec("ln -s /etc/passwd in/data/leak; mkfifo in/data/pipe")
    back = tmp_path / "back"
    copied = await project.workspace.download("in/data", back)
    assert copied.files == 4
    assert sorted(copied.skipped) == ["in/data/leak", "in/data/pipe"]
    for path in ("one.txt", "deep/er/two.bin", "run.sh", os.fsdecode(b"caf\xe9")):
        assert (back / path).read_bytes() == (source / path).read_bytes()
    assert (back / "empty").is_dir()
    assert os.access(back / "run.sh", os.X_OK)
    assert not os.access(back / "one.txt", os.X_OK)
    assert not [name for name in os.listdir(back) if name.endswith(".part")]


async def test_one_file_goes_in_and_comes_out(project: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    assert (await project.workspace.upload(tmp_path / "a", "b")).files == 1
    (tmp_path / "c").symlink_to("/etc/shadow")
    await project.workspace.download("b", tmp_path / "c")
    assert not (tmp_path / "c").is_symlink()
    assert (tmp_path / "c").read_text() == "a"


async def test_no_link_of_this_machine_is_written_through(project: Any, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "sub").symlink_to(tmp_path / "elsewhere")
    await project.workspace.write("tree/sub/file", "x")
    with pytest.raises(oubliette.Conflict, match="no folder"):
        await project.workspace.download("tree", target)
    assert os.listdir(tmp_path / "elsewhere") == []


async def test_an_upload_that_fails_leaves_nothing(project: Any, tmp_path: Path) -> None:
    await project.exec("mkdir full; ln -s /nowhere/else full/target")
    (tmp_path / "big").write_bytes(os.urandom(1_500_000))
    with pytest.raises(oubliette.InvalidParameter, match="out of the workspace"):
        await project.workspace.upload(tmp_path / "big", "full/target")
    version = await project.workspace.write("full/other", "x")
    del version
    with pytest.raises(oubliette.InvalidParameter):
        await project.workspace.upload(tmp_path / "big", "full")
    assert sorted(each.name for each in await project.workspace.list("full")) == [
        "other",
        "target",
    ]


async def test_the_workspace_of_a_session_is_the_one_its_agent_works_in(project: Any) -> None:
    session = await project.spawn("write made.txt")
    await session.turn
    await session.workspace.write("from-outside.txt", "x")
    assert "from-outside.txt" in [each.name for each in await session.workspace.list()]
