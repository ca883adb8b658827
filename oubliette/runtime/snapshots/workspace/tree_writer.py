"""TreeWriter, which makes a workspace equal to a snapshot, entry by entry.

Folders are opened from their parents, and no link is followed. A file is written under a name of
its own and takes the old one's place when it is whole.

Standard library only: the program that writes workspaces imports this module.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import stat
import time
from typing import IO, TYPE_CHECKING, Any, Final

from oubliette.runtime.snapshots.workspace.tree_reader import blob_name
from oubliette.runtime.snapshots.workspace.tree_table import (
    FILE_MODE,
    FOLDER_MODE,
    MANIFEST,
    PROGRAM_MODE,
    original,
)
from oubliette.runtime.snapshots.workspace.tree_walk import FILE, FOLDER, TooLate, TooMany, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oubliette.runtime.snapshots.workspace.tree_table import Part

_BLOCK: Final = 1024 * 1024
_SHARE_BLOCKS: Final = 0x40049409  # FICLONE
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FIND: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC


class StoredEntry:
    """A file or link of a snapshot; or one that it names without its content."""

    __slots__ = ("content", "kind", "mode", "size")

    def __init__(self, kind: str, mode: int, content: str, size: int = 0) -> None:
        self.kind = kind
        """`file`, `link`, `large` or `left_out`."""
        self.mode = mode
        self.content = content
        self.size = size


class StoredFolder:
    """A folder of a snapshot."""

    __slots__ = ("entries", "mode")

    def __init__(self) -> None:
        self.mode = FOLDER_MODE
        self.entries: dict[bytes, StoredEntry | StoredFolder] = {}


class StoredTree:
    """The tree of one snapshot; the two files are those of `git cat-file --batch`."""

    def __init__(self, asked: IO[bytes], answers: IO[bytes]) -> None:
        self._asked = asked
        self._answers = answers
        self.top = StoredFolder()

    def add(self, part: Part, listing: bytes) -> None:
        """Add what `git ls-tree -r -l -z` lists of a tree; the one with the manifest comes last.

        Raises:
            ValueError: it has something that no snapshot has.
        """
        manifest = ""
        for line in listing.split(b"\0")[:-1]:
            head, _, path = line.partition(b"\t")
            mode, _, content, size = head.decode().split()
            if part == "rest" and path == MANIFEST:
                manifest = content
                continue
            kind = "link" if mode == "120000" else "file"
            bits = PROGRAM_MODE if mode == "100755" else FILE_MODE
            # Of an object that is lost git has no size; it fails when its content is needed.
            count = int(size) if size.isdecimal() else 0
            self._put(original(part, path), StoredEntry(kind, bits, content, count))
        if manifest:
            self._describe(json.loads(self.content(manifest)))

    def content(self, name: str) -> bytes:
        """A blob.

        Raises:
            ValueError: the repository does not have it.
        """
        self._asked.write(name.encode() + b"\n")
        self._asked.flush()
        words = self._answers.readline().split()
        if len(words) != 3 or words[1] != b"blob":
            raise ValueError(f"the snapshot lacks {name}")
        data = self._answers.read(int(words[2]))
        self._answers.read(1)
        return data

    def _describe(self, manifest: dict[str, Any]) -> None:
        for name, mode in manifest["folders"].items():
            self._folder(os.fsencode(name).split(b"/")).mode = mode
        for name, mode in manifest["modes"].items():
            *parents, last = os.fsencode(name).split(b"/")
            entry = self._folder(parents).entries.get(last)
            if isinstance(entry, StoredEntry):
                entry.mode = mode
        for name, (size, content, mode) in manifest["large"].items():
            self._put(os.fsencode(name), StoredEntry("large", mode, content, size))
        for name, reason in manifest["left_out"].items():
            self._put(os.fsencode(name), StoredEntry("left_out", 0, reason))

    def _put(self, path: bytes, entry: StoredEntry) -> None:
        *parents, name = path.split(b"/")
        folder = self._folder(parents)
        if entry.kind == "left_out" and isinstance(folder.entries.get(name), StoredFolder):
            return  # a folder that could not be entered
        folder.entries[name] = entry

    def _folder(self, names: list[bytes]) -> StoredFolder:
        folder = self.top
        for name in names:
            if name in {b"", b".", b".."}:
                raise ValueError(f"{b'/'.join(names)!r} is no path of a workspace")
            found = folder.entries.get(name)
            if not isinstance(found, StoredFolder):
                found = folder.entries[name] = StoredFolder()
            folder = found
        return folder


class TreeWriter:
    """Writer of one tree.

    Args:
        tree: What the workspace is to be.
        deadline: Monotonic second.
        max_entries: Most entries that are looked at.
        only: Paths outside of which nothing is removed; empty: all that the tree lacks is.
        keep_objects: Whether objects of git are not removed, of which the tree may have no
            content.
        large_from: Descriptor of a folder from which files are copied of which the tree has the
            SHA-256 alone, if they are the same there; None: they are missing.
        keep_free: Bytes that such copies leave free on the disk.
    """

    def __init__(
        self,
        tree: StoredTree,
        *,
        deadline: float,
        max_entries: int,
        only: Sequence[bytes] = (),
        keep_objects: bool = False,
        large_from: int | None = None,
        keep_free: int = 0,
    ) -> None:
        self._only = only
        self._large_from = large_from
        self._keep_free = keep_free
        self._keep_objects = keep_objects
        self._tree = tree
        self._deadline = deadline
        self._left = max_entries
        self.written = 0
        self.removed = 0
        self.missing: dict[str, str] = {}
        """Paths of which the snapshot has no content, and what is known of them."""

    def write(self, root: int) -> None:
        """Make the tree below a folder equal to the snapshot.

        Raises:
            TooLate: the deadline has passed; repeat it.
            TooMany: there are too many entries.
            OSError: the file system refused.
            ValueError: the snapshot is damaged.
        """
        self._write_folder(root, self._tree.top, b"")

    def _write_folder(self, folder: int, wanted: StoredFolder, path: bytes) -> None:
        if stat.S_IMODE(os.fstat(folder).st_mode) & 0o700 != 0o700:
            os.fchmod(folder, 0o700)
        present = {os.fsencode(name) for name in os.listdir(folder)}
        for name in present - wanted.entries.keys():
            if self._is_removable(path + name):
                self._remove(folder, name)
        for name, entry in wanted.entries.items():
            self._tick()
            if isinstance(entry, StoredFolder):
                with self._folder_at(folder, name) as inner:
                    self._write_folder(inner, entry, path + name + b"/")
                    os.fchmod(inner, entry.mode)
            elif entry.kind in {"large", "left_out"}:
                self._keep(folder, name, entry, path)
            elif not self._is_there(folder, name, entry):
                self._write_entry(folder, name, entry)

    def _is_removable(self, path: bytes) -> bool:
        if self._only:
            return within(path, self._only)
        return not (self._keep_objects and path.startswith(b".git/") and b"/objects/" in path)

    def _tick(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooMany
        if self._left % 64 == 0 and time.monotonic() > self._deadline:
            raise TooLate

    # ------------------------------------------------------------------ entries

    def _is_there(self, folder: int, name: bytes, entry: StoredEntry) -> bool:
        """Return whether an entry is as wanted; the mode of a file is corrected."""
        try:
            if entry.kind == "link":
                return blob_name(os.readlink(name, dir_fd=folder)) == entry.content
            fd = os.open(name, FILE, dir_fd=folder)
        except OSError:
            return False
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):  # a folder, which no file object can be made of
            os.close(fd)
            return False
        with os.fdopen(fd, "rb") as file:
            # Not one byte more than there should be: an agent may have put any file here.
            if status.st_size != entry.size or blob_name(file.read(entry.size)) != entry.content:
                return False
            if stat.S_IMODE(status.st_mode) != entry.mode:
                if status.st_nlink > 1:
                    return False  # its other names keep the mode that they have
                os.fchmod(fd, entry.mode)
            return True

    def _write_entry(self, folder: int, name: bytes, entry: StoredEntry) -> None:
        data = self._tree.content(entry.content)
        temporary = f".{secrets.token_hex(16)}.new"
        if entry.kind == "link":
            os.symlink(data, temporary, dir_fd=folder)
        else:
            with os.fdopen(os.open(temporary, _NEW, 0o600, dir_fd=folder), "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), entry.mode)
        try:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:
            self._remove(folder, name)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        self.written += 1

    def _keep(self, folder: int, name: bytes, entry: StoredEntry, path: bytes) -> None:
        """Leave what the snapshot has no content of as it is; note if it is not what it was."""
        if entry.kind == "large" and self._copied(folder, name, entry, path):
            self.written += 1
            return
        shown = (path + name).decode("utf-8", "replace")
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            if entry.kind == "large":
                self.missing[shown] = f"{entry.size} bytes, SHA-256 {entry.content}"
            else:
                self.missing[shown] = entry.content
            return
        # Not one byte of a file of another size: an agent may have made it huge.
        if entry.kind == "large" and (
            status.st_size != entry.size or self._digest(folder, name, status) != entry.content
        ):
            self.missing[shown] = f"has changed; it was {entry.size} bytes, SHA-256 {entry.content}"

    def _copied(self, folder: int, name: bytes, entry: StoredEntry, path: bytes) -> bool:
        """Copy a large file from another folder; return whether it is the wanted one there."""
        if self._large_from is None:
            return False
        with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
            parent = self._large_from
            for each in path.split(b"/")[:-1]:
                parent = os.open(each, FOLDER, dir_fd=parent)
                opened.callback(os.close, parent)
            source = opened.enter_context(os.fdopen(os.open(name, FILE, dir_fd=parent), "rb"))
            status = os.fstat(source.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
                return False
            temporary = f".{secrets.token_hex(16)}.new".encode()
            target = os.fdopen(os.open(temporary, _NEW, 0o600, dir_fd=folder), "wb")
            try:
                with target:
                    self._clone(source, target, entry.size)
                    os.fchmod(target.fileno(), entry.mode)
                # What was copied is looked at, and not the source: agents may write to that.
                copy = os.stat(temporary, dir_fd=folder, follow_symlinks=False)
                if self._digest(folder, temporary, copy) != entry.content:
                    return False
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                return True
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
        return False

    def _clone(self, source: IO[bytes], target: IO[bytes], size: int) -> None:
        """Copy a file, by sharing its blocks where the file system can."""
        try:
            fcntl.ioctl(target.fileno(), _SHARE_BLOCKS, source.fileno())
        except OSError:
            disk = os.fstatvfs(target.fileno())
            if disk.f_bavail * disk.f_frsize < size + self._keep_free:
                raise
            while size > 0 and (block := source.read(min(size, _BLOCK))):
                target.write(block)
                size -= len(block)
                if time.monotonic() > self._deadline:
                    raise TooLate from None

    def _digest(self, folder: int, name: bytes, status: os.stat_result) -> str:
        if not stat.S_ISREG(status.st_mode):
            return ""
        digest = hashlib.sha256()
        with os.fdopen(os.open(name, FILE, dir_fd=folder), "rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                if time.monotonic() > self._deadline:
                    raise TooLate
        return digest.hexdigest()

    # ------------------------------------------------------------------ folders

    @contextlib.contextmanager
    def _folder_at(self, parent: int, name: bytes) -> Any:
        """A descriptor of the folder `name`, which takes the place of anything else."""
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            os.mkdir(name, 0o700, dir_fd=parent)
        else:
            if not stat.S_ISDIR(status.st_mode):
                os.unlink(name, dir_fd=parent)
                os.mkdir(name, 0o700, dir_fd=parent)
        fd = _opened(name, parent)
        try:
            yield fd
        finally:
            os.close(fd)

    def _remove(self, parent: int, name: bytes) -> None:
        """Remove an entry and all below it, however deep: inner folders are moved up first."""
        waiting = [name]
        while waiting:
            name = waiting.pop()
            self._tick()
            self.removed += 1
            if not _is_folder(parent, name):
                os.unlink(name, dir_fd=parent)
                continue
            fd = _opened(name, parent)
            try:
                os.fchmod(fd, 0o700)
                for inner in map(os.fsencode, os.listdir(fd)):  # noqa: PTH208 - of a descriptor
                    if not _is_folder(fd, inner):
                        os.unlink(inner, dir_fd=fd)
                        continue
                    moved = f".{secrets.token_hex(16)}.gone".encode()
                    opened = _opened(inner, fd)
                    os.fchmod(opened, 0o700)  # a folder that is moved is written to
                    os.close(opened)
                    os.rename(inner, moved, src_dir_fd=fd, dst_dir_fd=parent)
                    waiting.append(moved)
            finally:
                os.close(fd)
            os.rmdir(name, dir_fd=parent)


def _is_folder(parent: int, name: bytes) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _opened(name: bytes, parent: int) -> int:
    """A descriptor of a folder, which is made readable for that."""
    try:
        return os.open(name, FOLDER, dir_fd=parent)
    except PermissionError:
        found = os.open(name, _FIND | os.O_DIRECTORY, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{found}", 0o700)  # noqa: PTH101 - of a descriptor
        finally:
            os.close(found)
        return os.open(name, FOLDER, dir_fd=parent)
