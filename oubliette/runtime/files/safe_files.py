"""Files in folders that an agent can write: no link is followed, and nothing blocks.

Folders are opened step by step relative to a descriptor, with O_NOFOLLOW; a file to be read must be
regular and of a reasonable size, and is opened without waiting for a writer (a FIFO would block
indefinitely). A file to be written replaces the existing one under a name of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from oubliette.errors import RuntimeFailure
from oubliette.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
LIMIT: Final = 1 << 20  # bytes of a file that is read
MOST_TIMES: Final = 1000
"""Times that a folder into which something is put is emptied again, until it cannot be removed."""
GONE: Final = re.compile(r"\.[0-9a-f]{32}\.gone")
"""Pattern of names of folders that are being removed, or were when their server was killed."""


@contextlib.contextmanager
def opened(folder: Path) -> Generator[int]:
    """A descriptor of `folder`, which may not be a link itself.

    Raises:
        FileNotFoundError: the folder is missing.
        RuntimeFailure: the path is not a folder.
    """
    try:
        fd = os.open(folder, FOLDER)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RuntimeFailure(f"the folder {folder} cannot be used: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def naming(folder: Path) -> Generator[None]:
    """Name `folder` in full in errors, where folders elsewhere have the same name."""
    try:
        yield
    except RuntimeFailure as error:
        message = error.message.replace(repr(folder.name), str(folder))
        raise RuntimeFailure(message, hint=error.hint) from error


@contextlib.contextmanager
def inner(
    parent: int, name: str, *, create: bool, uid: int = -1, mode: int = 0o755
) -> Generator[int]:
    """Return a descriptor of the folder `name` in `parent`; made, with its owner, if `create`.

    A folder of root's that exists already gets the bits of `mode` that it lacks: one that was made
    under the umask of a hardened unit (0077) is closed to the agents, who are other users.

    Raises:
        RuntimeFailure: the folder is missing, or the name is not a folder.
    """
    try:
        made = create and _made(parent, name, mode)
        fd = os.open(name, FOLDER, dir_fd=parent)
    except OSError as error:
        raise RuntimeFailure(
            f"the folder {name!r} cannot be used: {error.strerror}",
            hint="something that is no folder may stand in its place; remove it",
        ) from error
    try:
        if create:
            status = os.fstat(fd)
            missing = mode & ~status.st_mode
            if missing and (made or status.st_uid == os.geteuid() == 0):
                os.fchmod(fd, stat.S_IMODE(status.st_mode) | missing)
            own(fd, uid)
        yield fd
    finally:
        os.close(fd)


def _made(parent: int, name: str, mode: int) -> bool:
    """Make a folder; return false if the name exists."""
    try:
        os.mkdir(name, mode, dir_fd=parent)
    except FileExistsError:
        return False
    return True


def make(parent: int, name: str, uid: int, mode: int = 0o755) -> None:
    """Make the folder `name` in `parent` if it is missing."""
    with inner(parent, name, create=True, uid=uid, mode=mode):
        pass


def check(parent: int, path: str, *, folder: bool) -> None:
    """Look whether a folder, or else a file, can be in this place; what is missing can be made.

    Raises:
        RuntimeFailure: as `make` and `write_below` would, and the disk's own errors.
    """
    *parents, name = PurePosixPath(path).parts
    with contextlib.ExitStack() as stack:
        for each in parents:
            if not exists(parent, each):
                return
            parent = stack.enter_context(inner(parent, each, create=False))
        try:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if folder:
            stack.enter_context(inner(parent, name, create=False))
        elif stat.S_ISDIR(found.st_mode):
            raise _not_written(name, os.strerror(errno.EISDIR))


def link(parent: int, name: str, target: str, uid: int = -1) -> None:
    """Make the symbolic link `name` in `parent`, unless the name exists.

    Raises:
        RuntimeFailure: the file system refused.
    """
    try:
        os.symlink(target, name, dir_fd=parent)
        own_entry(parent, name, uid)
    except FileExistsError:
        pass  # made by an agent or the repository, and left to them
    except OSError as error:
        raise RuntimeFailure(f"{name!r} cannot be made: {error.strerror}") from error


def exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def own(target: int | Path, uid: int) -> None:
    """Change the owner to the user of a project, if the server may."""
    if uid >= 0 and os.geteuid() == 0:
        os.chown(target, uid, uid)


def own_entry(folder: int, name: str, uid: int) -> None:
    """As `own`, for an entry of `folder`; a link itself, not what it points to."""
    if uid >= 0 and os.geteuid() == 0:
        os.chown(name, uid, uid, dir_fd=folder, follow_symlinks=False)


def read(folder: int, name: str, limit: int = LIMIT) -> bytes:
    """The content of the regular file `name`.

    Raises:
        FileNotFoundError: the file is missing.
        RuntimeFailure: the name is a link, no regular file, or larger than `limit`.
    """
    try:
        fd = os.open(name, _FILE, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RuntimeFailure(f"{name!r} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RuntimeFailure(f"{name!r} cannot be read: it is no plain file")
    with os.fdopen(fd, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise RuntimeFailure(f"{name!r} cannot be read: it is larger than {limit} bytes")
    return data


def write(folder: int, name: str, data: bytes, mode: int, uid: int = -1) -> None:
    """Replace `name` atomically: a reader sees the old file or the new one.

    Raises:
        RuntimeFailure: the name is a folder, or the disk failed.
    """
    temporary = f".{name}.{os.getpid()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        remove(folder, temporary)
        fd = os.open(temporary, flags, mode, dir_fd=folder)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)  # not left to the umask
            own(file.fileno(), uid)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            remove(folder, temporary)
        raise _not_written(name, str(error.strerror)) from error


def _not_written(name: str, reason: str) -> RuntimeFailure:
    return RuntimeFailure(
        f"{name!r} cannot be written: {reason}",
        hint="something that is no file may stand in its place; remove it",
    )


def write_below(folder: int, path: str, data: bytes, mode: int, uid: int = -1) -> None:
    """Write as `write` does, to a relative path whose missing folders are made.

    Raises:
        RuntimeFailure: as `write`, and if a link or a file has the name of a folder.
    """
    *parents, name = PurePosixPath(path).parts
    with contextlib.ExitStack() as stack:
        for parent in parents:
            folder = stack.enter_context(inner(folder, parent, create=True, uid=uid))
        write(folder, name, data, mode, uid)


def _always() -> bool:
    return True


def remove(parent: int, name: str, going: Callable[[], bool] = _always) -> None:
    """Remove an entry and all below it; links are removed, not followed.

    The depth is not limited: folders are moved up into `parent` first, so neither the stack nor the
    descriptors run out. Once `going` returns false it returns after the current folder; the rest
    has a name like `GONE`.

    Others may remove the same at the same time; what they have removed is gone, and what they have
    moved here is removed too. Folders of this user's that may not be written to, such as Go's cache
    of modules, get their bits back first.

    Raises:
        RuntimeFailure: the file system refused.
    """
    again = 0
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if not stat.S_ISDIR(mode):
            os.unlink(name, dir_fd=parent)
            return
        _give_bits(parent)
        waiting = [name]
        while waiting and going():
            folder = waiting.pop()
            moved = _emptied(parent, folder, patient=again < MOST_TIMES)
            again += folder in moved
            waiting += moved
            failpoint("folder.emptied")
    except FileNotFoundError:
        return
    except OSError as error:
        raise RuntimeFailure(f"{name!r} cannot be removed: {error.strerror}") from error


def _emptied(parent: int, name: str, *, patient: bool) -> list[str]:
    """Remove one folder and its files; return the names that its folders have now in `parent`.

    With `patient` the folder is among them if something was put into it meanwhile.
    """
    moved: list[str] = []
    try:
        fd = _opened_to_remove(parent, name)
    except FileNotFoundError:
        return moved
    try:
        for entry in os.listdir(fd):  # noqa: PTH208 -- of a descriptor
            with contextlib.suppress(FileNotFoundError):
                try:
                    os.unlink(entry, dir_fd=fd)
                except IsADirectoryError:
                    to = f".{secrets.token_hex(16)}.gone"
                    try:
                        os.rename(entry, to, src_dir_fd=fd, dst_dir_fd=parent)
                    except PermissionError:  # a folder that is moved is written to
                        os.close(_opened_to_remove(fd, entry))
                        os.rename(entry, to, src_dir_fd=fd, dst_dir_fd=parent)
                    moved.append(to)
    finally:
        os.close(fd)
    with contextlib.suppress(FileNotFoundError):
        try:
            os.rmdir(name, dir_fd=parent)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not patient:
                raise
            moved.append(name)
    return moved


def _opened_to_remove(parent: int, name: str) -> int:
    """A descriptor of a folder, which this user may list and write to from now on."""
    try:
        fd = os.open(name, FOLDER, dir_fd=parent)
    except PermissionError as error:
        if not hasattr(os, "O_PATH"):
            raise
        found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{found}", 0o700)  # noqa: PTH101 -- of a descriptor
        except FileNotFoundError:  # no /proc: not that the folder is gone
            raise error from None
        finally:
            os.close(found)
        fd = os.open(name, FOLDER, dir_fd=parent)
    try:
        _give_bits(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _give_bits(folder: int) -> None:
    status = os.fstat(folder)
    if status.st_mode & stat.S_IRWXU != stat.S_IRWXU and status.st_uid == os.geteuid():
        os.fchmod(folder, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
