"""Files of a workspace that are written, and files and folders that are deleted.

A file is written beside its name and then takes its place, so that half of it is never read.
Large files come in pieces, which are collected under a name that the caller has chosen.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from .places import DEEPEST, FOLDER, FileProblem, problem_of
from .reading import describe, version_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .places import Place

PART_BEGIN, PART_END = b".oubliette-", b".part"
LEFT_SECONDS = 24 * 3600.0  # age after which an unfinished part is removed
PERMISSIONS = 0o777
EXECUTE = 0o111


class Contents:
    """New content of a file, or a piece of it.

    Args:
        data: bytes of the content, or of this piece.
        expected: version that the file must still have; `absent`: it must not exist.
        executable: whether it may be run; None: as before.
        upload: name under which pieces are collected; empty: the content is whole.
        offset: position of this piece.
        final: whether this is the last piece.

    """

    __slots__ = ("data", "executable", "expected", "final", "offset", "upload")

    def __init__(
        self,
        data: bytes,
        *,
        expected: str | None = None,
        executable: bool | None = None,
        upload: str = "",
        offset: int = 0,
        final: bool = True,
    ) -> None:
        self.data = data
        self.expected = expected
        self.executable = executable
        self.upload = upload
        self.offset = offset
        self.final = final


def make_folder(place: Place) -> dict[str, Any]:
    """Make a folder where none is."""
    if place.kind == "folder":
        return {"kind": "folder", "created": False}
    if place.kind is not None:
        raise FileProblem("exists")
    os.mkdir(place.name, dir_fd=place.folder)
    return {"kind": "folder", "created": True}


def write_file(place: Place, contents: Contents) -> dict[str, Any]:
    """Write a whole file, or the next piece of one, which with the last piece is in its place."""
    if not place.name or place.kind == "folder":
        raise FileProblem("is_folder")
    if place.kind not in (None, "file"):
        raise FileProblem("special")
    _check_expected(place, contents.expected)
    word = contents.upload.encode() if contents.upload else os.urandom(8).hex().encode()
    part = PART_BEGIN + word + PART_END
    if contents.upload and contents.offset == 0:
        _remove_left_parts(place.folder)
    received = _write_part(place, part, contents)
    if not contents.final:
        return {"kind": "part", "received": received, "created": False}
    try:
        return _publish(place, part, contents)
    except BaseException:
        _remove(place.folder, part)
        raise


def _check_expected(place: Place, expected: str | None) -> None:
    if expected is None:
        return
    if expected == "absent":
        if place.stat is not None:
            raise FileProblem("exists")
    elif place.stat is None or version_of(place.stat) != expected:
        raise FileProblem("version")


def _write_part(place: Place, part: bytes, contents: Contents) -> int:
    """Write a piece, and return how many bytes of the file there are now."""
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    if not contents.upload:
        flags |= os.O_CREAT | os.O_EXCL
    elif contents.offset == 0:
        flags |= os.O_CREAT
    try:
        fd = os.open(part, flags, 0o666, dir_fd=place.folder)
    except FileNotFoundError:
        raise FileProblem("no_upload", "0") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise FileProblem("special")
        if contents.offset > found.st_size:
            raise FileProblem("no_upload", str(found.st_size))
        end = contents.offset
        left = memoryview(contents.data)
        while left:
            written = os.pwrite(fd, left, end)
            end += written
            left = left[written:]
        os.ftruncate(fd, end)  # a piece that is sent again replaces what followed it
        if contents.final:
            os.fchmod(fd, _mode(place, found.st_mode, executable=contents.executable))
    except OSError as error:
        if not contents.upload:
            _remove(place.folder, part)
        raise problem_of(error) from None
    finally:
        os.close(fd)
    return end


def _mode(place: Place, fresh: int, *, executable: bool | None) -> int:
    """Return the permissions: those of the file that is replaced, or of a new one."""
    mode = (place.stat.st_mode if place.stat is not None else fresh) & PERMISSIONS
    if executable is None:
        return mode
    # Who may read it may run it
    return mode | ((mode & 0o444) >> 2) if executable else mode & ~EXECUTE


def _publish(place: Place, part: bytes, contents: Contents) -> dict[str, Any]:
    folder = place.folder
    if contents.expected == "absent":
        # Unlike a rename this fails if an agent has made the file meanwhile
        os.link(part, place.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        os.unlink(part, dir_fd=folder)
    else:
        os.rename(part, place.name, src_dir_fd=folder, dst_dir_fd=folder)
    found = os.stat(place.name, dir_fd=folder, follow_symlinks=False)
    return {**describe(found), "created": place.stat is None}


def _remove(folder: int, name: bytes) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


def _remove_left_parts(folder: int) -> None:
    """Remove the parts that have been unfinished for a day."""
    oldest = time.time() - LEFT_SECONDS
    fd = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(fd) as found:
            names = [os.fsencode(entry.name) for entry in found]
        for name in names:
            if name.startswith(PART_BEGIN) and name.endswith(PART_END):
                left = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISREG(left.st_mode) and left.st_mtime < oldest:
                    os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return  # another removed it
    finally:
        os.close(fd)


def delete(place: Place, *, recursive: bool) -> dict[str, Any]:
    """Delete a file, a link itself, or a folder; with `recursive` also all that is in the folder.

    No link is followed on the way down.
    """
    if place.stat is None:
        raise FileProblem("missing")
    if not place.name:
        raise FileProblem("root")
    if place.kind != "folder":
        os.unlink(place.name, dir_fd=place.folder)
        return {"deleted": 1}
    try:
        os.rmdir(place.name, dir_fd=place.folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not recursive:
            raise problem_of(error) from None
        return {"deleted": _delete_tree(place.folder, place.name, DEEPEST)}
    return {"deleted": 1}


def _delete_tree(above: int, name: bytes, deepest: int) -> int:
    if deepest == 0:
        raise FileProblem("too_long")
    deleted = 0
    folder = os.open(name, FOLDER, dir_fd=above)
    try:
        fd = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            with os.scandir(fd) as found:
                entries = [
                    (os.fsencode(entry.name), entry.is_dir(follow_symlinks=False))
                    for entry in found
                ]
        finally:
            os.close(fd)
        for child, is_folder in entries:
            try:
                if is_folder:
                    deleted += _delete_tree(folder, child, deepest - 1)
                else:
                    os.unlink(child, dir_fd=folder)
                    deleted += 1
            except FileNotFoundError:
                continue  # an agent was faster
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=above)
    return deleted + 1
