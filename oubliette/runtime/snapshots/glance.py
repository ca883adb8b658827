"""Glance, a quick look at a workspace, which shows whether it has changed since the last one.

Most turns change nothing, or work in few files. A glance costs no process and opens no file; it
is given up in workspaces with many entries, which are left to the program that reads workspaces.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oubliette.runtime.snapshots.tree_reader import settled_before
from oubliette.runtime.snapshots.tree_walk import FOLDER, TooLate, TooMany, TreeWalk

if TYPE_CHECKING:
    from pathlib import Path

MAX_ENTRIES: Final = 2000
SECONDS: Final = 0.05
_OWN: Final = frozenset({".git", ".rlm-context", ".factory"})
"""Names in a workspace that has not been used yet."""
_OF_USED_GIT: Final = ("index", "logs", "packed-refs")


@dataclass(frozen=True, slots=True)
class Glance:
    """The outcome of a look at a workspace."""

    digest: bytes | None
    """Is the same as long as nothing changes; None: there is too much to look at."""
    settled: bool = False
    """Whether a change that comes now could not be mistaken for one that it has seen."""
    empty: bool = False
    """Whether there is nothing in it but what a new workspace has."""

    def same_as(self, other: Glance | None) -> bool:
        """Return whether nothing has changed since another glance."""
        return (
            other is not None
            and other.settled
            and self.digest is not None
            and self.digest == other.digest
        )


def glance(workspace: Path, *, enter: bool = True, whole: bool = True) -> Glance:
    """Look at a workspace. Blocks, for some milliseconds at most.

    Args:
        workspace: Its folder.
        enter: Whether to look at its entries too, of which there must not be many.
        whole: Whether to do that in an empty one as well.

    Raises:
        FileNotFoundError: it is gone.
    """
    root = os.open(workspace, FOLDER)
    digest = hashlib.sha256()
    settled, newest = settled_before(), 0

    def visit(_folder: int, _name: str, path: bytes, status: os.stat_result) -> None:
        nonlocal newest
        newest = max(newest, status.st_ctime_ns)
        size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
        text = f"\0{status.st_mode} {size} {status.st_ctime_ns} {status.st_ino}\0"
        digest.update(path + text.encode())

    def leave_out(path: bytes, reason: str) -> None:
        digest.update(path + b"\0" + reason.encode() + b"\0")

    empty = False
    try:
        empty = _is_empty(root)
        if not enter or (empty and not whole):
            return Glance(None, empty=empty)
        deadline = time.monotonic() + SECONDS
        TreeWalk(root, visit, leave_out, deadline=deadline, max_entries=MAX_ENTRIES)
    except (TooLate, TooMany):
        return Glance(None, empty=empty)
    finally:
        os.close(root)
    return Glance(digest.digest(), newest < settled, empty)


def _is_empty(root: int) -> bool:
    names = set(os.listdir(root))
    if names - _OWN:
        return False
    for name, is_new in ((".rlm-context", _has_nothing), (".git", _is_unused)):
        if name in names:
            try:
                fd = os.open(name, FOLDER, dir_fd=root)
            except OSError:
                return False
            try:
                if not is_new(fd):
                    return False
            finally:
                os.close(fd)
    return True


def _has_nothing(folder: int) -> bool:
    return not os.listdir(folder)


def _is_unused(repository: int) -> bool:
    return not any(name in _OF_USED_GIT for name in os.listdir(repository))
