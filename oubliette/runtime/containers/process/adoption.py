"""Discovery of this instance's containers after the server that made them was killed.

Records list the containers; `/proc` shows which run. A guest carries the labels of its container on
its command line, so that one is found even if its server was killed before it could store the pid.
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
    """A running guest."""

    process: procfs.HostProcess
    monitor: procfs.HostProcess | None = None
    """The bwrap that waits for it, unless that was killed."""


def find(base: Path, instance: str, *, sandboxed: bool) -> list[StoredContainer]:
    """Return every container of `instance`; `process` is set for running ones only."""
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
    """Remove runtime folders whose server ended before it wrote their record.

    Only empty ones are removed, so their owner does not matter: `create` makes them again.
    """
    for folder in base.iterdir():
        if _RUNTIME_DIR.fullmatch(folder.name) and not host_paths.beside(folder, "json").exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def clear_half_made(base: Path) -> None:
    """Remove the unfinished files and folders of a server that was killed."""
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
    """The guests of `instance` by container id.

    An agent in a sandbox cannot pass for one: only the guest is process 1 of a pid namespace
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
            # A child just forked by the guest shows its command line too, until exec.
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
