"""Names in a folder of a workspace, and ranges of its files."""

from __future__ import annotations

import bisect
import heapq
import itertools
import os
import stat

from .frames import name_string
from .places import FileProblem, kind_of, problem_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .places import Place

NAMES_KEPT = 250_000  # names of a folder held for its next page
TARGET_SHOWN = 4096  # bytes of a link's target


def describe(found: os.stat_result) -> dict[str, Any]:
    """Return what is known of a file, a folder, a link or something special."""
    kind = kind_of(found)
    fields: dict[str, Any] = {"kind": kind, "modified": found.st_mtime_ns}
    if kind == "file":
        fields["size"] = found.st_size
        fields["executable"] = bool(found.st_mode & stat.S_IXUSR)
        fields["version"] = version_of(found)
    return fields


def version_of(found: os.stat_result) -> str:
    """A word that another content of the same name does not have."""
    return f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}-{found.st_ctime_ns:x}"


def list_folder(place: Place, after: bytes, limit: int) -> dict[str, Any]:
    """Return what `place` is, and up to `limit` names of a folder, those after `after`, by bytes.

    Of a folder with too many names to hold, only a page of them is held at a time.
    """
    if place.stat is None:
        raise FileProblem("missing")
    answer = describe(place.stat)
    if place.kind != "folder":
        return {**answer, "entries": [], "more": False}
    fd = place.open(os.O_RDONLY | os.O_DIRECTORY)
    try:
        names = _last_folder.page(fd, after, limit + 1)
        entries = [entry for entry in (_entry(fd, name) for name in names[:limit]) if entry]
    finally:
        os.close(fd)
    answer["entries"] = entries
    answer["more"] = len(names) > limit
    answer["last"] = name_string(names[limit - 1]) if answer["more"] else ""
    return answer


class _LastFolder:
    """Sorted names of the folder that was listed last, for its next pages, until it changes."""

    def __init__(self) -> None:
        self._of: tuple[int, ...] = ()
        self._names: list[bytes] = []

    def page(self, fd: int, after: bytes, count: int) -> list[bytes]:
        """The first `count` names after `after`, in the order of their bytes."""
        found = os.fstat(fd)
        now = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
        if not after or now != self._of:
            self._of, self._names = (), []
            first = list(itertools.islice(_names(fd), NAMES_KEPT + 1))
            if len(first) > NAMES_KEPT:  # too many to hold: each page is picked from all
                return heapq.nsmallest(count, (name for name in _names(fd) if name > after))
            self._of, self._names = now, sorted(first)
        start = bisect.bisect_right(self._names, after) if after else 0
        names = self._names[start : start + count]
        if len(names) < count:  # the last page
            self._of, self._names = (), []
        return names


_last_folder = _LastFolder()


def _names(fd: int) -> Iterator[bytes]:
    with os.scandir(fd) as found:
        for entry in found:
            yield os.fsencode(entry.name)


def _entry(fd: int, name: bytes) -> dict[str, Any] | None:
    try:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        fields = {"name": name_string(name), **describe(found)}
        if stat.S_ISLNK(found.st_mode):
            fields["target"] = name_string(os.readlink(name, dir_fd=fd)[:TARGET_SHOWN])
    except FileNotFoundError:
        return None  # removed since its name was read
    return fields


def read_range(place: Place, offset: int, length: int) -> tuple[dict[str, Any], bytes]:
    """Return what a file is, and up to `length` of its bytes from `offset` on."""
    if place.stat is None:
        raise FileProblem("missing")
    if place.kind != "file":
        raise FileProblem("is_folder" if place.kind == "folder" else "special")
    try:
        fd = place.open(os.O_RDONLY)
    except OSError as error:
        raise problem_of(error) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):  # it has taken the file's place
            raise FileProblem("changed")
        pieces: list[bytes] = []
        while length > 0:
            piece = os.pread(fd, length, offset)
            if not piece:
                break
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
    finally:
        os.close(fd)
    return describe(found), b"".join(pieces)
