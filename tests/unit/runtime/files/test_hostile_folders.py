"""A hostile repository plants symlinks in every place where the host reads or writes.

Nothing outside is read, written, given away or removed, and nothing waits.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import OublietteError, RuntimeFailure
from oubliette.records import Project
from oubliette.runtime.files import safe_files
from oubliette.runtime.files.project_dirs import Folders
from tests.selection import core

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.timeout(60)

PROJECT = Project(id="proj_x", name="x", created_at=1.0, default_workspace_id="ws", uid=4_200_000)
FILES = {".factory/settings.json": (b"{}", 0o600), ".config/a/b.json": (b"{}", 0o600)}

IN_PROJECT = (
    "metadata.json",
    "config.json",
    "opencode.json",
    ".factory",
    ".factory/mcp.json",
    ".factory/settings.json",
    "workspaces",
    "workspaces/ws",
    "workspaces/ws/.rlm-context",
    ".rlm-context",
    "workspaces/ws/.factory",
    "workspaces/ws/.factory/mcp.json",
    f".metadata.json.{os.getpid()}.new",
    f".factory/.mcp.json.{os.getpid()}.new",
)
IN_HOME = (".factory", ".factory/settings.json", ".config", ".config/a", ".config/a/b.json")


def link_to_file(place: Path, outside: Path) -> None:
    place.symlink_to(outside / "shadow")


def link_to_folder(place: Path, outside: Path) -> None:
    place.symlink_to(outside / "etc")


def link_to_nothing(place: Path, outside: Path) -> None:
    place.symlink_to(outside / "not-there")


def link_to_itself(place: Path, _: Path) -> None:
    place.symlink_to(place.name)


def fifo(place: Path, _: Path) -> None:
    os.mkfifo(place)


def folder(place: Path, outside: Path) -> None:
    place.mkdir()
    (place / "in").symlink_to(outside / "etc")


def huge(place: Path, _: Path) -> None:
    with place.open("wb") as file:
        file.truncate(1 << 40)


def hard_link(place: Path, outside: Path) -> None:
    place.hardlink_to(outside / "shadow")


PLANTS = [
    link_to_file,
    link_to_folder,
    link_to_nothing,
    link_to_itself,
    fifo,
    folder,
    huge,
    hard_link,
]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    place = tmp_path / "outside"
    (place / "etc" / "deep").mkdir(parents=True)
    (place / "shadow").write_text("canary")
    (place / "shadow").chmod(0o600)
    (place / "etc" / "deep" / "canary").write_text("canary")
    return place


def look(outside: Path) -> dict[str, tuple[object, ...]]:
    """Everything outside: what is there, whose it is, what is in it."""
    seen: dict[str, tuple[object, ...]] = {}
    for path in sorted([outside, *outside.rglob("*")]):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        seen[str(path)] = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, data)
    return seen


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders(tmp_path / "home")
    made.prepare()
    made.create_project(PROJECT)
    made.create_workspace(PROJECT, "ws")
    made.create_session_home(PROJECT, "gogol_x", FILES)
    return made


def replaced(place: Path, plant: Callable[[Path, Path], None], outside: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    plant(place, outside)


def everything(folders: Folders) -> None:
    """All that the host does below a project and a HOME; what it refuses it refuses in words."""
    for step in (
        lambda: folders.create_project(PROJECT),
        lambda: folders.create_workspace(PROJECT, "ws"),
        lambda: folders.create_workspace(PROJECT, "new"),
        lambda: folders.create_session_home(PROJECT, "gogol_x", FILES),
        lambda: folders.configs.add_workspace(PROJECT, "ws"),
        lambda: folders.remove_session("proj_x", "gogol_x"),
        lambda: folders.remove_workspace("proj_x", "ws"),
        lambda: folders.remove_project("proj_x"),
    ):
        try:
            step()
        except OublietteError as refused:
            assert refused.message


@pytest.mark.parametrize("plant", core({link_to_folder, fifo, huge}, PLANTS))
def test_nothing_that_is_planted_reaches_outside(
    folders: Folders, outside: Path, plant: Callable[[Path, Path], None]
) -> None:
    for place in IN_PROJECT:
        folders.create_project(PROJECT)
        folders.create_workspace(PROJECT, "ws")
        replaced(folders.project("proj_x") / place, plant, outside)
        before = look(outside)
        everything(folders)
        assert look(outside) == before, place
    for place in IN_HOME:
        folders.create_session_home(PROJECT, "gogol_x", FILES)
        replaced(folders.session_homes("proj_x") / "gogol_x" / place, plant, outside)
        before = look(outside)
        everything(folders)
        assert look(outside) == before, place


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_home_itself_may_be_anything(
    folders: Folders, outside: Path, plant: Callable[[Path, Path], None]
) -> None:
    for place in (
        folders.session_homes("proj_x") / "gogol_x",
        folders.session_homes("proj_x"),
        folders.project("proj_x"),
    ):
        replaced(place, plant, outside)
        before = look(outside)
        everything(folders)
        assert look(outside) == before, place


@pytest.mark.whole
def test_a_folder_of_any_depth_is_removed(folders: Folders, outside: Path) -> None:
    before = look(outside)
    fd = os.open(folders.workspace("proj_x", "ws"), os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        os.symlink(outside / "etc", "link", dir_fd=fd)
        deeper = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    folders.remove_workspace("proj_x", "ws")
    assert os.listdir(folders.project("proj_x") / "workspaces") == []
    folders.remove_project("proj_x")
    assert list(folders.projects.iterdir()) == []
    assert look(outside) == before


def test_what_is_no_plain_file_is_not_read_and_not_waited_for(outside: Path) -> None:
    os.mkfifo(outside / "fifo")
    (outside / "link").symlink_to("shadow")
    huge(outside / "huge", outside)
    with safe_files.opened(outside) as fd:
        for name in ("fifo", "link", "huge", "etc"):
            with pytest.raises(RuntimeFailure, match=name):
                safe_files.read(fd, name)
        assert safe_files.read(fd, "shadow") == b"canary"
        with pytest.raises(FileNotFoundError):
            safe_files.read(fd, "not-there")
