"""Folders of one Apple container on this machine.

`<base>/<8 hex>/` stays ours: the published socket `relay.sock` lies in it, and `in/`, its only
shared folder, for the key. Beside it are `<8 hex>.spool/`, the mark `<8 hex>.json` (see
`runtime_dirs`) and `<8 hex>.status`, which marks a started container: `container` itself calls one
that was never started and one that has ended both `stopped`.
"""

from __future__ import annotations

import contextlib
import stat
from typing import TYPE_CHECKING, Final

from oubliette.runtime.containers import host_paths, runtime_dirs
from oubliette.runtime.containers.base import KEY_FILE, RELAY_SOCKET

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.containers.base import ContainerSpec

ENGINE: Final = "apple"
_STARTED: Final = "status"


def key_dir(spec: ContainerSpec) -> Path:
    return spec.runtime_dir / "in"


def socket_of(spec: ContainerSpec) -> Path:
    return spec.runtime_dir / RELAY_SOCKET


def make(spec: ContainerSpec, *, uid: int | None) -> None:
    """Make the folders; called again before each start.

    Raises:
        RuntimeFailure, OSError: another file has their name.
    """
    runtime_dirs.make(spec, engine=ENGINE, uid=None)
    host_paths.give_folder(runtime_dirs.spool_of(spec), uid=uid, mode=0o700)
    host_paths.make_owned(spec.runtime_dir, key_dir(spec).name, uid=uid)


def arm(spec: ContainerSpec, key: bytes, *, uid: int | None) -> None:
    """Write the key, remove an old socket, and note that the container is started."""
    runtime_dirs.empty(key_dir(spec))
    socket_of(spec).unlink(missing_ok=True)
    host_paths.write_private(key_dir(spec) / KEY_FILE, key, uid=uid)
    host_paths.write_private(host_paths.beside(spec.runtime_dir, _STARTED), b"started\n")


def published(spec: ContainerSpec) -> bool:
    """Return whether the socket exists; sets a private mode."""
    try:
        is_socket = stat.S_ISSOCK(socket_of(spec).lstat().st_mode)
        if is_socket:
            socket_of(spec).chmod(0o600)
    except OSError:
        return False
    return is_socket


def disarm(spec: ContainerSpec, *, started: bool) -> None:
    """Remove the key, and the note of the start unless it succeeded."""
    with contextlib.suppress(OSError):
        (key_dir(spec) / KEY_FILE).unlink(missing_ok=True)
    if not started:
        with contextlib.suppress(OSError):
            socket_of(spec).unlink(missing_ok=True)
        host_paths.beside(spec.runtime_dir, _STARTED).unlink(missing_ok=True)


def was_started(spec: ContainerSpec) -> bool:
    """Return whether a start was begun, and not undone."""
    return host_paths.beside(spec.runtime_dir, _STARTED).exists()
