"""Walk through a workspace by descriptors, in which no link is followed.

An agent owns the tree and may change it meanwhile: each folder is opened from its parent, and what
is gone by then is passed over.

Standard library only: the program that reads workspaces imports this module.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from itertools import islice
from stat import S_ISDIR
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

    from oubliette.runtime.snapshots.workspace.tree_table import Entry

    Visit = Callable[[int, str, bytes, os.stat_result], None]
    """Takes the folder's descriptor, the name in it, the path, and the entry's status."""
    LeaveOut = Callable[[bytes, str], None]
    Left = Callable[[os.stat_result], None]
    """Takes the status of a folder, as it is once everything in it was visited."""

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
MAX_DEPTH: Final = 200
"""Folders within folders; as many descriptors are open at a time, and git's trees are as deep."""
_ENCODING: Final = sys.getfilesystemencoding()


class TooLate(Exception):
    """The time was too short for the tree."""


class TooMany(Exception):
    """The tree has more entries than allowed."""


def within(path: bytes, only: Sequence[bytes]) -> bool:
    """Return whether a path is one of `only`, or below one."""
    return any(path == each or path.startswith(each + b"/") for each in only)


def leads_to(path: bytes, only: Sequence[bytes]) -> bool:
    """Whether one of `only` is below a path."""
    return any(each.startswith(path + b"/") for each in only)


class TreeWalk:
    """Walk through one tree.

    Args:
        root: Descriptor of the tree's folder.
        visit: Is called with each entry; folders come before what is in them.
        leave_out: Is called with the path of a folder that is not entered, and the reason.
        deadline: Monotonic second.
        max_entries: Most entries that a tree may have.
        only: Paths outside of which nothing is visited but the folders that lead to them; empty:
            all is visited.
        left: Is called for each folder, also for one that could not be entered.
        known: Entries as they were; those that still are so are put into `found`, not visited.
        found: Where they are put.

    Raises:
        TooLate: the deadline has passed.
        TooMany: there are more entries.
    """

    def __init__(
        self,
        root: int,
        visit: Visit,
        leave_out: LeaveOut,
        *,
        deadline: float,
        max_entries: int,
        only: Sequence[bytes] = (),
        left: Left | None = None,
        known: MutableMapping[bytes, Entry] | None = None,
        found: MutableMapping[bytes, Entry] | None = None,
    ) -> None:
        self._known: MutableMapping[bytes, Entry] = {} if known is None else known
        self._found: MutableMapping[bytes, Entry] = {} if found is None else found
        self._only = only
        self._left = left
        self._visit = visit
        self._leave_out = leave_out
        self._deadline = deadline
        self._max_entries = max_entries
        self._device = os.fstat(root).st_dev
        self.seen = 0
        self._enter(root, b"", 1)

    def _enter(self, folder: int, path: bytes, depth: int) -> None:
        with os.scandir(folder) as listing:
            entries = list(islice(listing, self._max_entries - self.seen + 1))
        if self._only:
            entries = self._wanted(entries, path)
        self._count(len(entries))
        visit, known, found = self._visit, self._known.get, self._found
        for entry in entries:  # this loop is most of what a large tree costs
            name = entry.name
            below = path + name.encode(_ENCODING, "surrogateescape")
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._leave_out(below, f"unreadable: {error.strerror}")
                continue
            was = known(below)
            # A folder is not known by its times. Of others no content, mode or kind changes
            # without the time of change, and no other inode gets the number with the same time.
            if (
                was is not None
                and was[3] == status.st_ctime_ns
                and was[4] == status.st_ino
                and was[2] == status.st_size
                and (not self._only or within(below, self._only))
            ):
                found[below] = was
                continue
            is_folder = S_ISDIR(status.st_mode)
            if self._only and not is_folder and not within(below, self._only):
                continue
            visit(folder, name, below, status)
            if is_folder:
                self._go_down(folder, name, below, status, depth)
        if self._left is not None:
            self._left(os.fstat(folder))

    def _wanted(self, entries: list[os.DirEntry[str]], path: bytes) -> list[os.DirEntry[str]]:
        """Return those of a folder's entries that are wanted, or may lead to one that is."""
        paths = [path + os.fsencode(entry.name) for entry in entries]
        return [
            entry
            for entry, below in zip(entries, paths, strict=True)
            if within(below, self._only) or leads_to(below, self._only)
        ]

    def _go_down(
        self, folder: int, name: str, path: bytes, status: os.stat_result, depth: int
    ) -> None:
        if status.st_dev != self._device:
            self._leave_out(path, "on another file system")
            return
        if depth >= MAX_DEPTH:
            self._leave_out(path, f"more than {MAX_DEPTH} folders deep")
            return
        try:
            inner = os.open(name, FOLDER, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._leave_out(path, f"unreadable: {error.strerror}")
            if self._left is not None:
                with contextlib.suppress(FileNotFoundError):
                    self._left(os.stat(name, dir_fd=folder, follow_symlinks=False))
            return
        try:
            self._enter(inner, path + b"/", depth + 1)
        finally:
            os.close(inner)

    def _count(self, entries: int) -> None:
        self.seen += entries
        if self.seen > self._max_entries:
            raise TooMany
        if time.monotonic() > self._deadline:
            raise TooLate
