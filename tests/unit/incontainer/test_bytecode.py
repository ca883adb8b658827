"""Where programs of ours in a container keep bytecode, and where they do not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from oubliette.incontainer import bytecode
from oubliette.runtime.containers import layout


@pytest.fixture(autouse=True)
def _unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(bytecode, "FOLDER", str(tmp_path / "kept"))


def library(monkeypatch: pytest.MonkeyPatch, folder: Path, *, compiled: bool) -> None:
    """Have the standard library lie in `folder`."""
    (folder / "__pycache__").mkdir(parents=True)
    if compiled:
        name = f"enum.{sys.implementation.cache_tag}.pyc"
        (folder / "__pycache__" / name).touch()
    monkeypatch.setattr(os, "__file__", str(folder / "os.py"))


def own(tmp_path: Path) -> Path:
    return tmp_path / f"kept-{os.geteuid()}"


def test_it_is_kept_where_the_image_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library(monkeypatch, tmp_path / "lib", compiled=False)
    bytecode.keep(layout.ZIPAPP)
    assert sys.pycache_prefix == str(own(tmp_path))
    assert not sys.dont_write_bytecode
    assert own(tmp_path).stat().st_mode & 0o777 == 0o700


def test_it_is_not_kept_where_the_image_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library(monkeypatch, tmp_path / "lib", compiled=True)
    bytecode.keep(layout.ZIPAPP)
    assert (sys.pycache_prefix, sys.dont_write_bytecode) == (None, True)
    assert not own(tmp_path).exists()


def test_nothing_is_kept_outside_a_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library(monkeypatch, tmp_path / "lib", compiled=False)
    bytecode.keep(str(tmp_path / "oubliette.pyz"))
    assert sys.pycache_prefix is None
    assert not own(tmp_path).exists()


def test_a_folder_that_was_chosen_already_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library(monkeypatch, tmp_path / "lib", compiled=False)
    monkeypatch.setattr(sys, "pycache_prefix", "/elsewhere")
    bytecode.keep(layout.ZIPAPP)
    assert sys.pycache_prefix == "/elsewhere"


def test_the_folder_of_an_earlier_start_is_used_again(tmp_path: Path) -> None:
    first = bytecode.own_folder(str(tmp_path / "kept"))
    assert first is not None
    assert bytecode.own_folder(str(tmp_path / "kept")) == first


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755])
def test_a_folder_that_others_may_enter_is_not_used(tmp_path: Path, mode: int) -> None:
    own(tmp_path).mkdir()
    own(tmp_path).chmod(mode)
    assert bytecode.own_folder(str(tmp_path / "kept")) is None


def test_a_link_or_a_file_in_its_place_is_not_used(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    own(tmp_path).symlink_to(target)
    assert bytecode.own_folder(str(tmp_path / "kept")) is None
    own(tmp_path).unlink()
    own(tmp_path).touch(mode=0o600)
    assert bytecode.own_folder(str(tmp_path / "kept")) is None


def test_without_a_place_to_write_there_is_none(tmp_path: Path) -> None:
    assert bytecode.own_folder(str(tmp_path / "missing" / "kept")) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of others")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    own(tmp_path).mkdir(mode=0o700)
    os.chown(own(tmp_path), 12345, 12345)
    assert bytecode.own_folder(str(tmp_path / "kept")) is None
