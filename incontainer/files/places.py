"""Paths of a workspace, walked folder by folder, so that no link leads out of it.

Each folder is opened below the one before, never by its whole path, and no link is followed by the
kernel: what an agent moves or replaces meanwhile cannot lead elsewhere. Links are followed here as
long as they stay inside the workspace.
"""

from __future__ import annotations

import errno
import os
import stat

DEEPEST = 200  # folders above each other; each is an open descriptor
LINKS = 40  # links that one path may lead through, as in the kernel
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

REASONS = {
    errno.ENOENT: "missing",
    errno.ENOTDIR: "not_folder",
    errno.EISDIR: "is_folder",
    errno.EEXIST: "exists",
    errno.ENOTEMPTY: "not_empty",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "read_only",
    errno.ELOOP: "changed",  # a link, where there was none a moment ago
    errno.ENXIO: "special",
    errno.ENAMETOOLONG: "too_long",
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "full",
}


class FileProblem(Exception):
    """An operation is refused or failed; `reason` is the code that the server gets."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


def problem_of(error: OSError) -> FileProblem:
    """The problem that an error of the kernel stands for."""
    reason = REASONS.get(error.errno or 0)
    return FileProblem(reason or "failed", "" if reason else os.strerror(error.errno or 0))


class Place:
    """Name in an open folder of a workspace, and what is there now, if anything.

    Without a name it is the folder itself: the workspace, or the folder that a `..` leads to.
    """

    __slots__ = ("_folders", "name", "stat")

    def __init__(
        self, folders: list[int], name: bytes = b"", found: os.stat_result | None = None
    ) -> None:
        self._folders = folders
        self.name = name
        self.stat = found

    @property
    def folder(self) -> int:
        return self._folders[-1]

    @property
    def kind(self) -> str | None:
        """Kind of the file that has the name; None: nothing has it."""
        return None if self.stat is None else kind_of(self.stat)

    def open(self, flags: int) -> int:
        """Open what is there; a link is refused, and a pipe does not block."""
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(self.name or b".", flags, dir_fd=self.folder)

    def close(self) -> None:
        for folder in self._folders:
            os.close(folder)
        self._folders.clear()


def kind_of(found: os.stat_result) -> str:
    """The kind of a file, as the server knows them."""
    if stat.S_ISREG(found.st_mode):
        return "file"
    if stat.S_ISDIR(found.st_mode):
        return "folder"
    return "link" if stat.S_ISLNK(found.st_mode) else "special"


def find(root: bytes, path: bytes, *, follow: bool = True, make: bool = False) -> Place:
    """Walk from the workspace `root` to `path`.

    Args:
        root: absolute path of the workspace.
        path: path below it.
        follow: whether a link at the end is followed, too.
        make: whether missing folders on the way are made.

    Raises:
        FileProblem: `missing`, `not_folder`, `outside`, `loop`, `too_long` or `denied`.

    """
    walk = _Walk(root)
    try:
        return walk.to(path, follow=follow, make=make)
    except OSError as error:
        walk.close()
        raise problem_of(error) from None
    except BaseException:
        walk.close()
        raise


class _Walk:
    """Open folders from the workspace down, and the parts of the path that are still to come."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        try:
            # The workspace's own path is the server's: links above it are the machine's
            self._folders = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
        except OSError:
            raise FileProblem("no_workspace") from None
        self._left: list[bytes] = []  # the next part is the last
        self._links = 0

    def close(self) -> None:
        for folder in self._folders:
            os.close(folder)

    def to(self, path: bytes, *, follow: bool, make: bool) -> Place:
        self._add(path)
        while self._left:
            part = self._left.pop()
            if part == b"..":
                self._up()
                continue
            found = self._look(part, make=make and bool(self._left))
            if found is None:
                if self._left:
                    raise FileProblem("missing")
                return Place(self._folders, part)
            if stat.S_ISLNK(found.st_mode) and (follow or self._left):
                self._follow(part)
            elif self._left:
                self._down(part)
            else:
                return Place(self._folders, part, found)
        return Place(self._folders, b"", os.fstat(self._folders[-1]))

    def _add(self, path: bytes) -> None:
        parts = [part for part in path.split(b"/") if part not in (b"", b".")]
        self._left.extend(reversed(parts))

    def _look(self, part: bytes, *, make: bool) -> os.stat_result | None:
        try:
            return os.stat(part, dir_fd=self._folders[-1], follow_symlinks=False)
        except FileNotFoundError:
            if not make:
                return None
        try:
            os.mkdir(part, dir_fd=self._folders[-1])
        except FileExistsError:
            pass  # an agent was faster
        return os.stat(part, dir_fd=self._folders[-1], follow_symlinks=False)

    def _up(self) -> None:
        if len(self._folders) == 1:
            raise FileProblem("outside")
        os.close(self._folders.pop())

    def _down(self, part: bytes) -> None:
        if len(self._folders) > DEEPEST:
            raise FileProblem("too_long")
        # O_NOFOLLOW: a link that has taken the folder's place since is not followed
        self._folders.append(os.open(part, FOLDER, dir_fd=self._folders[-1]))

    def _follow(self, part: bytes) -> None:
        self._links += 1
        if self._links > LINKS:
            raise FileProblem("loop")
        try:
            target = os.readlink(part, dir_fd=self._folders[-1])
        except OSError as error:
            reason = "changed" if error.errno == errno.EINVAL else REASONS.get(error.errno or 0)
            raise FileProblem(reason or "failed") from None
        if target.startswith(b"/"):
            root = self._root.rstrip(b"/")
            if target != root and not target.startswith(root + b"/"):
                raise FileProblem("outside")
            target = target[len(root) :]
            while len(self._folders) > 1:
                os.close(self._folders.pop())
        self._add(target)
