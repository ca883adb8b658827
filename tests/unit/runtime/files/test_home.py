"""The server's own folder: whom it is open to."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import HomeInUse
from oubliette.runtime.files import home as homes
from oubliette.runtime.files.home import HomeLock

if TYPE_CHECKING:
    from collections.abc import Iterator
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


@contextlib.contextmanager
def forked() -> Iterator[None]:
    """A process that was forked now, and lives to the end of the block: a worker of a pool."""
    waits, ends = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ends)
        os.read(waits, 1)
        os._exit(0)
    try:
        yield
    finally:
        os.close(waits)
        os.close(ends)
        os.waitpid(pid, 0)


def test_a_forked_process_does_not_keep_a_home_that_was_given_back(tmp_path: Path) -> None:
    lock = HomeLock(tmp_path)
    lock.acquire()
    with forked():
        lock.release()
        with HomeLock(tmp_path), pytest.raises(HomeInUse, match=rf"this process \({os.getpid()}\)"):
            HomeLock(tmp_path).acquire()


def test_a_forked_process_does_not_keep_the_home_of_a_process_that_was_killed(
    tmp_path: Path,
) -> None:
    told, tells = os.pipe()
    waits, ends = os.pipe()
    program = os.fork()
    if program == 0:
        HomeLock(tmp_path).acquire()
        if os.fork() == 0:  # the worker, which outlives the program
            os.close(ends)
            os.write(tells, b"x")
            os.read(waits, 1)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(program, 0)
    assert os.read(told, 1) == b"x"
    with HomeLock(tmp_path):
        os.close(ends)
    for fd in (told, tells, waits):
        os.close(fd)
