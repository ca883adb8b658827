"""Paths of a workspace lead where the kernel would lead them, or nowhere if that is outside."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.incontainer.files import places
from oubliette.incontainer.files.places import FileProblem

NAMES = ["a", "b", "c"]
TARGETS = st.lists(st.sampled_from([*NAMES, "..", "."]), min_size=1, max_size=4).map("/".join)
PATHS = st.lists(st.sampled_from([*NAMES, "..", "."]), max_size=6).map("/".join)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def read(workspace: Path, path: str) -> str:
    place = places.find(os.fsencode(workspace), os.fsencode(path))
    try:
        with open(place.open(os.O_RDONLY)) as file:
            return file.read()
    finally:
        place.close()


def reason(workspace: Path, path: str, **how: bool) -> str:
    with pytest.raises(FileProblem) as caught:
        places.find(os.fsencode(workspace), os.fsencode(path), **how).close()
    return caught.value.reason


def test_a_link_out_of_the_workspace_is_refused_at_any_place(workspace: Path) -> None:
    (workspace / "up").symlink_to("../outside")
    (workspace / "root").symlink_to("/")
    (workspace / "beside").symlink_to(f"{workspace}side")
    (workspace / "d").mkdir()
    (workspace / "d" / "far").symlink_to("../../outside/secret")
    for path in ("up", "up/secret", "root", "root/etc", "beside", "d/far", "../outside", ".."):
        assert reason(workspace, path) == "outside"


def test_a_link_that_stays_inside_is_followed(workspace: Path) -> None:
    (workspace / "d" / "e").mkdir(parents=True)
    (workspace / "d" / "file").write_text("here")
    (workspace / "absolute").symlink_to(workspace / "d" / "e")
    (workspace / "d" / "e" / "back").symlink_to("../../absolute/../file")
    assert read(workspace, "absolute/back") == "here"


def test_a_folder_that_becomes_a_link_on_the_way_is_not_left_through_it(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "d").mkdir()
    (workspace / "d" / "secret").write_text("inside")
    look = os.stat

    def swapped(*given: object, **more: object) -> os.stat_result:
        found = look(*given, **more)  # type: ignore[arg-type]
        if given[0] == b"d" and not (workspace / "d").is_symlink():
            (workspace / "d").rename(workspace / "old")
            (workspace / "d").symlink_to("../outside")
        return found

    monkeypatch.setattr(places.os, "stat", swapped)
    assert reason(workspace, "d/secret") in {"not_folder", "changed"}


def test_a_file_that_becomes_a_link_is_not_read_through_it(workspace: Path) -> None:
    (workspace / "f").write_text("inside")
    place = places.find(os.fsencode(workspace), b"f")
    try:
        (workspace / "f").unlink()
        (workspace / "f").symlink_to("../outside/secret")
        with pytest.raises(OSError, match="f"):
            place.open(os.O_RDONLY)
    finally:
        place.close()


def test_no_path_keeps_folders_open(workspace: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    deep = "/".join(["x"] * 150)
    places.find(os.fsencode(workspace), os.fsencode(f"{deep}/f"), make=True).close()
    assert reason(workspace, "/".join(["x"] * 300)) in {"too_long", "missing"}
    assert reason(workspace, f"{deep}/none/none") == "missing"
    assert len(os.listdir("/proc/self/fd")) == before


@given(
    links=st.dictionaries(st.sampled_from(["a", "b", "a/a", "a/b", "c/a"]), TARGETS, max_size=4),
    folders=st.sets(st.sampled_from(["a", "b", "c", "a/a", "a/c", "c/b"])),
    path=PATHS,
)
def test_a_path_leads_where_the_kernel_leads_it_or_is_refused(
    links: dict[str, str], folders: set[str], path: str
) -> None:
    base = Path(tempfile.mkdtemp())
    try:
        root = base / "in"
        root.mkdir()
        for folder in sorted(folders):
            (root / folder).mkdir(parents=True, exist_ok=True)
        for link, target in links.items():
            if not (root / link).exists() and (root / link).parent.is_dir():
                try:
                    (root / link).symlink_to(target)
                except OSError:
                    continue
        kernel = os.path.realpath(root / path)
        try:
            found = places.find(os.fsencode(root), os.fsencode(path))
        except FileProblem:
            return
        try:
            assert found.stat is None or os.path.samestat(found.stat, os.stat(root / path))
            assert f"{kernel}/".startswith(f"{os.path.realpath(root)}/")
        finally:
            found.close()
    finally:
        shutil.rmtree(base)
