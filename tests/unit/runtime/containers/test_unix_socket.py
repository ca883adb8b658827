"""A Unix socket is connected at once or refused at once."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.containers.unix_socket import connected, inode_of

if TYPE_CHECKING:
    from pathlib import Path


def test_the_socket_is_connected_when_it_is_returned(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with connected(path) as link:
            assert link.getpeername() == str(path)
            assert not link.getblocking()


def test_a_full_backlog_refuses_instead_of_pretending_progress(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(0)
        with connected(path), pytest.raises(BlockingIOError):
            connected(path)


def test_what_does_not_listen_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        connected(tmp_path / "s")


@pytest.mark.parametrize("kind", ["link", "dangling", "file", "pipe", "folder"])
def test_only_a_socket_itself_is_connected_to(tmp_path: Path, kind: str) -> None:
    """An agent may put what it likes in the place of its relay's socket."""
    path, other = tmp_path / "s", tmp_path / "other"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(other))
        listening.listen()
        listening.setblocking(False)
        match kind:
            case "link":
                path.symlink_to(other)
            case "dangling":
                path.symlink_to(tmp_path / "nothing")
            case "file":
                path.touch()
            case "pipe":
                os.mkfifo(path)
            case _:
                path.mkdir()
        with pytest.raises(OSError, match="no socket is in its place"):
            connected(path)
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_another_socket_than_the_one_that_proved_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        first.bind(str(path))
        first.listen()
        inode = inode_of(path)
        connected(path, inode).close()
        path.rename(tmp_path / "moved")
        connected(tmp_path / "moved", inode).close()
        second.bind(str(path))
        second.listen()
        with pytest.raises(OSError, match="another socket"):
            connected(path, inode)
