"""Folders of an engine's container on this machine: relay, spool, a mark of ownership.

`<base>/<8 hex>/` becomes `/mcp` and belongs to the container's user. Beside it, invisible inside:
`<8 hex>.spool/` and `<8 hex>.json`, the mark. It is written first and removed last, so that all
remains of a crash are known to be ours; and it keeps others from taking the folder for an unused
one (`adoption.clear_empty`).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from oubliette.runtime.containers import host_paths
from oubliette.runtime.containers.base import KEY_FILE, LABEL_INSTANCE, RELAY_SOCKET
from oubliette.runtime.containers.layout import READY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.runtime.containers.base import ContainerSpec


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file beside a runtime folder."""

    engine: str
    container: str
    instance: str


_marks = msgspec.json.Decoder(Mark)  # made before threads start: see store/codec.py


def spool_of(spec: ContainerSpec) -> Path:
    """The folder for unread output."""
    return spec.spool_dir or host_paths.beside(spec.runtime_dir, "spool")


def make(spec: ContainerSpec, *, engine: str, uid: int | None) -> None:
    """Make the folders; called again before each start (cleaners of /tmp remove them).

    Raises:
        RuntimeFailure, OSError: another file has their name.
    """
    mark = Mark(engine=engine, container=spec.id, instance=spec.labels[LABEL_INSTANCE])
    host_paths.write_private(host_paths.beside(spec.runtime_dir, "json"), msgspec.json.encode(mark))
    spool = spool_of(spec)
    for folder in (spec.runtime_dir, spool):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        host_paths.give_folder(folder, uid=uid, mode=0o700)


def empty(runtime_dir: Path) -> None:
    """Remove all files of agents in the folder of the relay; links are not followed."""
    for entry in os.scandir(runtime_dir):
        if entry.is_dir(follow_symlinks=False):
            host_paths.clear_away(Path(entry.path))
        else:
            Path(entry.path).unlink(missing_ok=True)


def arm(spec: ContainerSpec, key: bytes, *, uid: int | None) -> int:
    """Write the key and return the reading end of the FIFO on which the guest sends `ready`."""
    empty(spec.runtime_dir)
    host_paths.write_private(spec.runtime_dir / KEY_FILE, key, uid=uid)
    fifo = spec.runtime_dir / READY
    os.mkfifo(fifo, 0o600)
    fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if uid is not None and os.geteuid() == 0:
            os.fchown(fd, uid, uid)
    except BaseException:
        os.close(fd)
        raise
    return fd


def disarm(runtime_dir: Path, *, started: bool) -> None:
    """Remove what only a start needs; and the socket and the key, if it failed."""
    names = (READY,) if started else (READY, KEY_FILE, RELAY_SOCKET)
    for name in names:
        with contextlib.suppress(OSError):
            (runtime_dir / name).unlink(missing_ok=True)


def clear(spec: ContainerSpec) -> None:
    """Remove all of it, the mark last."""
    host_paths.clear_away(spool_of(spec))
    host_paths.clear_away(spec.runtime_dir)
    host_paths.forget_beside(spec.runtime_dir)


def marked(base: Path, engine: str, instance: str) -> Iterator[tuple[Path, str]]:
    """Return runtime folders of `instance` on `engine`, each with the id of its container."""
    for path in sorted(base.glob("*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            mark = _marks.decode(path.read_bytes())
            if (mark.engine, mark.instance) == (engine, instance):
                yield path.with_suffix(""), mark.container
