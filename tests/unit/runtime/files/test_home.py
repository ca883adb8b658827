"""The server's own folder: whom it is open to."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.files import home as homes

if TYPE_CHECKING:
    from pathlib import Path


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def test_a_new_home_is_for_its_owner_alone(tmp_path: Path) -> None:
    homes.prepare(tmp_path / "home")
    assert mode(tmp_path / "home") == 0o700


@pytest.mark.parametrize("found", [0o755, 0o777, 0o750, 0o701 | 0o004])
def test_a_home_that_others_could_read_is_closed(tmp_path: Path, found: int) -> None:
    tmp_path.chmod(found)
    homes.prepare(tmp_path)
    assert mode(tmp_path) == 0o700


def test_agents_that_live_without_a_server_are_not_shut_out_by_the_next_one(tmp_path: Path) -> None:
    """They pass through it to their files, their programs and the relay all the time."""
    tmp_path.chmod(0o711)
    homes.prepare(tmp_path)
    assert mode(tmp_path) == 0o711


def test_a_server_whose_agents_do_not_pass_through_its_home_closes_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    homes.close(tmp_path)
    assert mode(tmp_path) == 0o700
