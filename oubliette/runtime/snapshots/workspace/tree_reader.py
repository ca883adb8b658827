"""TreeReader, which reads what has changed in a workspace, and Glance, which shows whether.

An entry whose inode has not changed is not read again. What changes under the reader's hands is
noticed, without a second pass: an agent cannot set the time at which the kernel saw the last change
of an inode. If no such time, looked at during the pass, is later than its beginning, then each
entry and each folder's list of names was found as it had been at the beginning. The tree that was
read did exist, at that moment, even if it has changed behind the reader's back since.

Standard library only: the program that reads workspaces imports this module.

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

from oubliette.runtime.snapshots.workspace.tree_table import NEVER, Entry, TreeTable
from oubliette.runtime.snapshots.workspace.tree_walk import FILE, FOLDER, TooLate, TooMany, TreeWalk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_BLOCK: Final = 1024 * 1024
LARGEST: Final = 8 << 30
"""Bytes of a file that is read at all: an empty disk image has terabytes, and takes no room."""
_CLOCK: Final = getattr(time, "CLOCK_REALTIME_COARSE", time.CLOCK_REALTIME)
"""The clock of which the kernel takes the times of files."""
SAME_TICK: Final = 10_000_000
"""Nanoseconds within which two changes of a file may have the same time."""
NO_CONTENT: Final = {
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "pipe",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def settled_before() -> int:
    """The nanosecond before which a change of a file cannot be mistaken for a later one."""
    return time.clock_gettime_ns(_CLOCK) - SAME_TICK


def _clocks() -> int:
    """Nanoseconds by which the clock of files is ahead of one that is never set."""
    return time.clock_gettime_ns(_CLOCK) - time.monotonic_ns()


def blob_name(data: bytes) -> str:
    """The name that git gives to a content."""
    digest = hashlib.sha1(b"blob %d\0" % len(data), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest()


class TreeReader:
    """One pass over a workspace; `table` is its outcome.

    Args:
        known: Table of an earlier pass.
        store: Is called with the name and the content of each file or link that was read.
        max_file_bytes: Largest file whose content is stored.
        deadline: Monotonic second.
    """

    def __init__(
        self,
        known: TreeTable,
        store: Callable[[str, bytes], None],
        *,
        max_file_bytes: int,
        deadline: float,
    ) -> None:
        self._known = known.entries
        self._store = store
        self._max_file_bytes = max_file_bytes
        self._deadline = deadline
        self._clocks = _clocks()
        self._settled = settled_before()
        self._newest = 0
        """Newest change of a folder, or of an entry that is not as it was known."""
        self.table = TreeTable()
        self._entries = self.table.entries
        self.steady = True
        """Whether no file changed while it was read."""
        self.of_one_moment = False
        """Whether the tree was like the table when the pass began."""

    def read(self, root: int, max_entries: int, only: Sequence[bytes] = ()) -> None:
        """Read the tree, or these paths of it.

        Raises:
            TooLate: the deadline has passed.
            TooMany: there are more entries.
        """
        TreeWalk(
            root,
            self._visit,
            self._leave_out,
            deadline=self._deadline,
            max_entries=max_entries,
            only=only,
            left=self._left,
            known=self._known,
            found=self._entries,
        )
        was_set = abs(_clocks() - self._clocks) > SAME_TICK
        self.of_one_moment = self.steady and not was_set and self._newest < self._settled

    def _left(self, folder: os.stat_result) -> None:
        self._newest = max(self._newest, folder.st_ctime_ns)

    def _leave_out(self, path: bytes, reason: str) -> None:
        self.table.left_out[path] = reason

    def _visit(self, folder: int, name: str, path: bytes, status: os.stat_result) -> None:
        mode = status.st_mode
        self._newest = max(self._newest, status.st_ctime_ns)
        if stat.S_ISDIR(mode):
            entry = Entry("folder", stat.S_IMODE(mode) & 0o777)
            known = self._known.get(path)
            # The same object if it is equal: tables are compared by it first.
            self._entries[path] = known if known is not None and known == entry else entry
        elif stat.S_ISREG(mode) and status.st_size > LARGEST:
            self._leave_out(path, f"larger than {LARGEST >> 30} GiB")
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            try:
                entry = self._read(folder, name, status)
            except (FileNotFoundError, NotADirectoryError):
                self.steady = False
            except OSError as error:
                self._leave_out(path, f"unreadable: {error.strerror}")
                self._look_again(folder, name)
            else:
                self._entries[path] = entry
        else:
            self._leave_out(
                path, NO_CONTENT.get(stat.S_IFMT(mode), "neither file, folder nor link")
            )

    def _look_again(self, folder: int, name: str) -> None:
        """Notice if an entry was made unreadable under the reader's hands."""
        try:
            now = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            self.steady = False
        else:
            self._newest = max(self._newest, now.st_ctime_ns)

    def _read(self, folder: int, name: str, status: os.stat_result) -> Entry:
        if time.monotonic() > self._deadline:
            raise TooLate
        if stat.S_ISLNK(status.st_mode):
            target = os.fsencode(os.readlink(name, dir_fd=folder))
            return self._entry("link", status, self._stored(target))
        fd = os.open(name, FILE, dir_fd=folder)
        try:
            before = os.fstat(fd)
            if not stat.S_ISREG(before.st_mode):
                raise FileNotFoundError
            if before.st_size > self._max_file_bytes:
                content, kind = self._digest(fd), "large"
            else:
                content, kind = self._stored(self._content(fd)), "file"
            after = os.fstat(fd)
        finally:
            os.close(fd)
        self._newest = max(self._newest, after.st_ctime_ns)
        if _stamp(before) != _stamp(after):
            self.steady = False
            return self._entry(kind, after, content)._replace(changed=NEVER)
        return self._entry(kind, after, content)

    def _content(self, fd: int) -> bytes:
        data = bytearray()
        while block := os.read(fd, min(_BLOCK, self._max_file_bytes + 1 - len(data))):
            data += block
        return bytes(data[: self._max_file_bytes])  # one that grows is read again

    def _digest(self, fd: int) -> str:
        digest = hashlib.sha256()
        while block := os.read(fd, _BLOCK):
            digest.update(block)
            if time.monotonic() > self._deadline:
                raise TooLate
        return digest.hexdigest()

    def _stored(self, data: bytes) -> str:
        name = blob_name(data)
        self._store(name, data)
        return name

    def _entry(self, kind: str, status: os.stat_result, content: str) -> Entry:
        changed = status.st_ctime_ns if status.st_ctime_ns < self._settled else NEVER
        mode = 0o777 if kind == "link" else stat.S_IMODE(status.st_mode) & 0o777
        return Entry(kind, mode, status.st_size, changed, status.st_ino, content)  # type: ignore[arg-type]


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_ctime_ns, status.st_ino


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
        """Whether nothing has changed since another glance."""
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
