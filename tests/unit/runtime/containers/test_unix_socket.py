"""A Unix socket is connected at once or refused at once."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.containers.unix_socket import connected

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
