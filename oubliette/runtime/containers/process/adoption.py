"""Find the containers of this instance again after the server that made them was killed.

Records say what was made; `/proc` says what lives. A host carries the labels of its container on
its command line, so that even one is found whose server was killed before it could note the pid.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.runtime.containers import host_paths
from oubliette.runtime.containers.base import LABEL_CONTAINER, LABEL_INSTANCE
from oubliette.runtime.containers.process import procfs, state_file

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.containers.process.state_file import StoredContainer

_RUNTIME_DIR: Final = re.compile("[0-9a-f]{8}")


class Living(msgspec.Struct, frozen=True):
    """A host that runs."""

    process: procfs.HostProcess
    monitor: procfs.HostProcess | None = None
    """The bwrap that waits for it, unless that was killed."""


def find(base: Path, instance: str, *, sandboxed: bool) -> list[StoredContainer]:
    """Every container of `instance`; `process` is set for those that live, and only for them."""
    clear_empty(base)
    living = find_living(instance, sandboxed=sandboxed)
    found: list[StoredContainer] = []
    for kept in state_file.load_all(base):
        if kept.spec.labels.get(LABEL_INSTANCE) != instance:
            continue
        process, monitor = kept.process, kept.monitor
        if process is None or not procfs.is_alive(process):
            now = living.get(kept.spec.id)
            process, monitor = (now.process, now.monitor) if now is not None else (None, None)
        found.append(msgspec.structs.replace(kept, process=process, monitor=monitor))
    return found


def clear_empty(base: Path) -> None:
    """Remove runtime folders whose server died before it wrote their record.

    Only empty ones go, so it does not matter whose they are: `create` makes them again.
    """
    for folder in base.iterdir():
        if _RUNTIME_DIR.fullmatch(folder.name) and not state_file.beside(folder, "json").exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def clear_half_made(base: Path) -> None:
    """Remove what a server has left here that was killed while it wrote or made it."""
    clear_empty(base)
    for entry in base.iterdir():
        made = host_paths.HALF_MADE.fullmatch(entry.name)
        if made is not None and not _lives(int(made["pid"])):
            with contextlib.suppress(OSError):
                if entry.is_dir() and not entry.is_symlink():
                    host_paths.clear_away(entry)
                else:
                    entry.unlink()


def _lives(pid: int) -> bool:
    return pid != os.getpid() and procfs.identify(pid) is not None


def find_living(instance: str, *, sandboxed: bool) -> dict[str, Living]:
    """The hosts of `instance` by container id.

    An agent in a sandbox cannot pass for one: only the host is process 1 of a pid namespace
    directly below ours. Nor can other users: it must run as we do.
    """
    own = procfs.status(os.getpid())
    depth = 1 if own is None else len(own.ns_pids)
    found: dict[str, Living] = {}
    for pid in procfs.pids():
        labels = procfs.labels_of(procfs.command_line(pid))
        container_id = labels.get(LABEL_CONTAINER)
        if labels.get(LABEL_INSTANCE) != instance or container_id is None:
            continue
        who = procfs.status(pid)
        process = procfs.identify(pid)
        if who is None or process is None:
            continue
        if not sandboxed:
            # What the host has just forked shows its command line too, until it is replaced.
            parent = procfs.parent_and_session(pid)
            if parent is None or procfs.labels_of(procfs.command_line(parent[0])) != labels:
                found[container_id] = Living(process)
        elif who.uid == os.geteuid() and len(who.ns_pids) == depth + 1 and who.ns_pids[-1] == 1:
            found[container_id] = Living(process, _monitor(pid, labels))
    return found


def _monitor(pid: int, labels: dict[str, str]) -> procfs.HostProcess | None:
    place = procfs.parent_and_session(pid)
    if place is None or procfs.labels_of(procfs.command_line(place[0])) != labels:
        return None
    return procfs.identify(place[0])
