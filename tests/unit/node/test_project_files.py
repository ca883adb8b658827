"""Packing and unpacking of a project's files: agents wrote them, so nothing in them is followed."""

from __future__ import annotations

import io
import os
import tarfile
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import RuntimeFailure
from oubliette.node import project_files

if TYPE_CHECKING:
    from pathlib import Path

PROJECT = "proj_1"


def archive(home: Path, *members: tuple[tarfile.TarInfo, bytes]) -> str:
    path = project_files.packed(home, PROJECT)
    with tarfile.open(path, "w") as made:
        for member, content in members:
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return project_files.digest(path)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, 0o700
    made.uid, made.gid = os.getuid(), os.getgid()
    return made


def test_files_links_and_modes_arrive_as_they_were(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    work = here / "projects" / PROJECT / "workspaces" / "w"
    work.mkdir(parents=True)
    there.mkdir()
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    (work / "link").symlink_to("/etc/passwd")
    os.link(work / "run.sh", work / "same.sh")
    os.mkfifo(work / "pipe")
    kept = here / "homes" / PROJECT / "s1"
    kept.mkdir(parents=True)
    (kept / "état").write_bytes(b"\x00\xff")
    old = there / "projects" / PROJECT
    old.mkdir(parents=True)
    (old / "stale").write_text("of an earlier stay")

    path, sha256 = project_files.pack(here, PROJECT)
    path.rename(project_files.packed(there, PROJECT))
    project_files.unpack(there, PROJECT, sha256)

    found = there / "projects" / PROJECT / "workspaces" / "w"
    assert sorted(each.name for each in found.iterdir()) == ["link", "run.sh", "same.sh"]
    assert (found / "run.sh").stat().st_mode & 0o777 == 0o755
    assert os.readlink(found / "link") == "/etc/passwd"
    assert (found / "same.sh").samefile(found / "run.sh")
    assert (there / "homes" / PROJECT / "s1" / "état").read_bytes() == b"\x00\xff"
    assert not (old / "stale").exists()
    assert list((there / project_files.FOLDER).iterdir()) == []


@pytest.mark.parametrize(
    "members",
    [
        [(member("../outside"), b"x")],
        [(member("/etc/outside"), b"x")],
        [(member("projects/proj_2/file"), b"x")],
        [(member("projects/proj_1/../proj_2/file"), b"x")],
        [
            (member("projects/proj_1/out", tarfile.SYMTYPE, "/tmp"), b""),
            (member("projects/proj_1/out/file"), b"x"),
        ],
        [(member("projects/proj_1/hard", tarfile.LNKTYPE, "../../secret"), b"")],
        [(member("projects/proj_1/device", tarfile.CHRTYPE), b"")],
    ],
)
def test_an_archive_that_leads_elsewhere_is_refused_and_leaves_nothing(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    sha256 = archive(tmp_path, *members)
    with pytest.raises(RuntimeFailure, match="cannot be unpacked"):
        project_files.unpack(tmp_path, PROJECT, sha256)
    assert not (tmp_path / "projects").exists()
    assert list((tmp_path / project_files.FOLDER).iterdir()) == []


def test_files_that_did_not_arrive_whole_are_refused(tmp_path: Path) -> None:
    sha256 = archive(tmp_path, (member("projects/proj_1/file"), b"x"))
    with project_files.packed(tmp_path, PROJECT).open("ab") as file:
        file.write(b"more")
    with pytest.raises(RuntimeFailure, match="did not arrive"):
        project_files.unpack(tmp_path, PROJECT, sha256)
