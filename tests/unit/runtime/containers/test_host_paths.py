"""Folders on this side: what is refused, what is never followed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from oubliette.errors import ConfigError, RuntimeFailure
from oubliette.runtime.containers import host_paths

BASE = f"oubliette-{os.geteuid()}"


def test_the_base_is_ours_alone(tmp_path: Path, short: Path) -> None:
    base = host_paths.runtime_base(short)
    assert base == short / BASE
    assert stat.S_IMODE(base.stat().st_mode) == 0o700
    assert host_paths.runtime_base(short) == base


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o770])
def test_a_base_that_others_could_use_is_closed(short: Path, mode: int) -> None:
    (short / BASE).mkdir()
    (short / BASE).chmod(mode)
    base = host_paths.runtime_base(short)
    assert stat.S_IMODE(base.stat().st_mode) == 0o700


def test_a_base_that_is_a_link_is_refused(short: Path) -> None:
    (short / "elsewhere").mkdir()
    (short / BASE).symlink_to(short / "elsewhere")
    with pytest.raises(ConfigError, match="link"):
        host_paths.runtime_base(short)


def test_a_base_that_is_a_file_is_refused(short: Path) -> None:
    (short / BASE).write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="not a folder"):
        host_paths.runtime_base(short)


@pytest.mark.requires("root")
def test_a_base_of_somebody_else_is_refused(short: Path) -> None:
    (short / BASE).mkdir()
    os.chown(short / BASE, 12345, 12345)
    with pytest.raises(ConfigError, match="12345"):
        host_paths.runtime_base(short)


def test_a_path_that_is_too_long_for_a_socket_is_refused_with_the_remedy(short: Path) -> None:
    room = host_paths.MAX_SOCKET_PATH - len(str(short / BASE / "01234567" / "relay.sock"))
    exact = short / ("x" * (room - 1))
    assert (
        len(str(host_paths.new_runtime_dir(host_paths.runtime_base(exact)) / "relay.sock")) == 103
    )
    with pytest.raises(ConfigError, match="containers.runtime_dir") as caught:
        host_paths.runtime_base(short / ("x" * room))
    assert "104 bytes" in str(caught.value)
    with pytest.raises(ConfigError):
        host_paths.runtime_base(short / ("é" * (room // 2 + 1)))


def test_without_configuration_the_base_is_in_the_users_runtime_folder(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    assert host_paths.runtime_base() == short / BASE


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone has agents of another user")
def test_a_users_runtime_folder_that_its_agents_cannot_pass_is_passed_over(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, passable = short / "closed", short / "passable"
    closed.mkdir(mode=0o700)
    passable.mkdir(mode=0o755)
    short.chmod(0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(closed))
    monkeypatch.setattr("tempfile.tempdir", str(passable))
    assert host_paths.runtime_base() == closed / BASE
    assert host_paths.temporary_folder(12345) == passable
    monkeypatch.setattr("os.access", lambda place, _: str(place).startswith(str(short)))
    assert host_paths.runtime_base(stranger=12345) == passable / BASE
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", str(closed))
    assert host_paths.temporary_folder() == closed
    assert host_paths.temporary_folder(12345) == Path("/tmp")


def test_a_configured_folder_that_is_not_there_yet_is_made_for_those_who_must_pass(
    short: Path,
) -> None:
    assert host_paths.runtime_base(short / "own") == short / "own" / BASE
    assert stat.S_IMODE((short / "own").stat().st_mode) == 0o700
    assert host_paths.runtime_base(short / "passable", stranger=12345) == short / "passable" / BASE
    assert stat.S_IMODE((short / "passable").stat().st_mode) == 0o701
    assert stat.S_IMODE((short / "passable" / BASE).stat().st_mode) == 0o700


def test_a_temporary_folder_without_room_for_a_sockets_path_is_passed_over(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = short / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    assert host_paths.temporary_folder() == deep
    assert host_paths.temporary_folder(longest=40) == Path("/tmp")


def test_runtime_folders_get_names_that_nothing_else_has(short: Path) -> None:
    made = {host_paths.new_runtime_dir(short) for _ in range(50)}
    assert len(made) == 50
    for folder in made:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(folder.name) == 8


def test_a_private_file_replaces_a_planted_link_and_does_not_write_through_it(
    tmp_path: Path,
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched", encoding="utf-8")
    (tmp_path / "key").symlink_to(victim)
    host_paths.write_private(tmp_path / "key", b"secret")
    assert victim.read_text(encoding="utf-8") == "untouched"
    assert not (tmp_path / "key").is_symlink()
    assert (tmp_path / "key").read_bytes() == b"secret"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "victim"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    host_paths.write_private(tmp_path / "file", b"old")
    with pytest.raises(TypeError):
        host_paths.write_private(tmp_path / "file", None)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_giving_a_link_away_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(RuntimeFailure, match="link"):
        host_paths.give_folder(tmp_path / "link", uid=12345)
    assert (tmp_path / "target").stat().st_uid == os.geteuid()


ours = pytest.mark.requires("root")


def names(fd: int) -> list[str]:
    try:
        return os.listdir(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


@ours
def test_a_link_in_an_agents_folder_decides_nothing(short: Path) -> None:
    """An agent owns its project: what it plants there must not be mounted at the next start."""
    (short / "secret").mkdir()
    project = short / "project"
    project.mkdir()
    (project / "real").mkdir()
    (project / "planted").symlink_to(short / "secret")
    (project / "relative").symlink_to("../secret")
    (project / "file").symlink_to("/etc/shadow")
    os.chown(project, 12345, 12345)
    for name in ("planted", "relative", "file"):
        with pytest.raises(RuntimeFailure, match=f"{name} is a link"):
            host_paths.open_source(project / name)
        with pytest.raises(RuntimeFailure, match="is a link"):
            host_paths.open_source(project / name / "below")
    assert names(host_paths.open_source(project / "real")) == []


@ours
def test_links_of_root_are_followed_as_far_as_they_lead_through_folders_of_root(
    short: Path,
) -> None:
    (short / "a" / "b").mkdir(parents=True)
    (short / "a" / "b" / "found").mkdir()
    (short / "absolute").symlink_to(short / "a")
    (short / "relative").symlink_to("a/b")
    (short / "up").symlink_to("a/b/../../absolute/b")
    for name in ("absolute/b", "relative", "up"):
        assert names(host_paths.open_source(short / name)) == ["found"]
    (short / "one").symlink_to("two")
    (short / "two").symlink_to("one")
    with pytest.raises(RuntimeFailure, match="is a link"):
        host_paths.open_source(short / "one")


def test_a_missing_source_leaves_no_descriptor_open(short: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in (short / "none", short / "none" / "below"):
        with pytest.raises(FileNotFoundError):
            host_paths.open_source(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_clearing_away_a_link_leaves_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").write_text("kept", encoding="utf-8")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner").symlink_to(tmp_path / "target")
    for name in ("link", "folder", "missing"):
        host_paths.clear_away(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert (tmp_path / "target" / "file").exists()


def test_closed_folders_on_a_way_are_named_and_can_be_opened(short: Path) -> None:
    inner = short / "closed" / "inner"
    inner.mkdir(parents=True)
    (short / "closed").chmod(0o700)
    stranger = os.geteuid() + 1
    short.chmod(0o755)
    assert host_paths.closed_folders(inner, stranger) == [short / "closed"]
    assert host_paths.closed_folders(inner, os.geteuid()) == []
    (short / "closed").chmod(0o711)
    assert host_paths.closed_folders(inner, stranger) == []
    (short / "closed").chmod(0o700)
    host_paths.let_pass(short / "closed")
    assert stat.S_IMODE((short / "closed").stat().st_mode) == 0o701
    assert host_paths.closed_folders(short / "none", stranger) == [short / "none"]
