"""Folders on this machine for relay sockets, and folders that belong to an agent's user.

An agent may replace what it owns by a link to something else at any moment, so nothing here follows
one: folders are opened from their parent with `O_NOFOLLOW` and changed by descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from oubliette.errors import ConfigError, RuntimeFailure
from oubliette.runtime.containers.base import RELAY_SOCKET

MAX_SOCKET_PATH: Final = 103
"""Bytes. macOS has room for 104 with the final zero, Linux for 108; one limit for both."""

_OPEN_DIR: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_PATH: Final = os.O_PATH | os.O_CLOEXEC if hasattr(os, "O_PATH") else os.O_RDONLY
_MAX_LINKS: Final = 40

HALF_MADE: Final = re.compile(r"\..+\.(?P<pid>[0-9]+)\.[0-9a-f]{8}")
"""Pattern of names of unfinished files and kits: it has the writer's process."""


def runtime_base(configured: Path | str | None = None, *, stranger: int | None = None) -> Path:
    """Return the folder `oubliette-<uid>` of all runtime folders of this user; made if missing.

    It lies in `configured`, else in `XDG_RUNTIME_DIR`, else in `/run/user/<uid>`, else in the
    folder for temporary files. Folders that user `stranger` may not pass to are skipped.

    Raises:
        ConfigError: it is a link, belongs to another user, may be entered by others, or its path
            is too long for a socket in it.
    """
    uid = os.geteuid()
    parent = Path(configured) if configured is not None else _usual_parent(uid, stranger)
    base = parent.absolute() / f"oubliette-{uid}"
    _check_length(base / "01234567" / RELAY_SOCKET)
    try:
        if configured is not None and not parent.exists():
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if stranger is not None:
                let_pass(parent)
        with contextlib.suppress(FileExistsError):
            base.mkdir(mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"{base} cannot be made: {error.strerror}", hint="set containers.runtime_dir"
        ) from error
    try:
        fd = os.open(base, _OPEN_DIR)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise ConfigError(
                f"{base} is a link or a file, not a folder",
                hint="another user may have planted it; remove it, or set containers.runtime_dir",
            ) from error
        raise ConfigError(
            f"{base} cannot be opened: {error.strerror}", hint="set containers.runtime_dir"
        ) from error
    try:
        status = os.fstat(fd)
        if status.st_uid != uid:
            raise ConfigError(
                f"{base} belongs to user {status.st_uid}, not to {uid}",
                hint="another user may have planted it; remove it, or set containers.runtime_dir",
            )
        # Only what others could use: 0711 is required, and set, by best-effort as root.
        if stat.S_IMODE(status.st_mode) & 0o066:
            os.fchmod(fd, 0o700)
    finally:
        os.close(fd)
    return base


def _usual_parent(uid: int, stranger: int | None) -> Path:
    named = os.environ.get("XDG_RUNTIME_DIR", "")
    longest = len(f"/oubliette-{uid}/01234567/{RELAY_SOCKET}")
    for candidate in (named, f"/run/user/{uid}"):
        if candidate.startswith("/") and _suits(Path(candidate), stranger, longest):
            return Path(candidate)
    return temporary_folder(stranger, longest=longest)


def temporary_folder(stranger: int | None = None, *, longest: int = 0) -> Path:
    """Return the folder for temporary files, or the machine's if that one is unsuitable.

    User `stranger` must be able to pass to it, and the path of a socket must fit, of which
    `longest` bytes come after this one's. If none is suitable it is the usual one.
    """
    usual = Path(tempfile.gettempdir())
    others = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 -- a new folder, 0700, is made in it
    return next((each for each in (usual, *others) if _suits(each, stranger, longest)), usual)


def _suits(folder: Path, stranger: int | None, longest: int) -> bool:
    if len(os.fsencode(folder)) + longest > MAX_SOCKET_PATH:
        return False
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    return stranger is None or not closed_folders(folder, stranger)


def _check_length(socket: Path) -> None:
    size = len(os.fsencode(socket))
    if size > MAX_SOCKET_PATH:
        raise ConfigError(
            f"the path of a relay socket would have {size} bytes, {MAX_SOCKET_PATH} are possible:"
            f" {socket}",
            hint="set containers.runtime_dir to a folder with a shorter path",
        )


def new_runtime_dir(base: Path) -> Path:
    """Make a new folder `<8 hex>` (0700) in `base`, for `ContainerSpec.runtime_dir`.

    `base` is made again if it was removed, as what cleans folders for temporary files does.

    Raises:
        ConfigError: the path of its socket is too long, or `base` cannot be made.
    """
    if not os.path.lexists(base):
        runtime_base(base.parent)
    while True:
        folder = base / secrets.token_hex(4)
        _check_length(folder / RELAY_SOCKET)
        if any(base.glob(f"{folder.name}.*")):
            continue
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return folder


def make_owned(parent: Path, name: str, *, uid: int | None, mode: int = 0o700) -> Path:
    """Make `parent/name` if it is missing and give it to `uid` (and the group of that number).

    `parent` is opened as it is; `name` is one component and is never followed if it is a link.
    Without `uid`, or if this process may not change owners, it stays ours.

    Raises:
        RuntimeFailure: the name exists and is not a folder.
    """
    parent_fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode=0o700, dir_fd=parent_fd)
        _give(name, parent_fd, uid=uid, mode=mode, shown=parent / name)
    finally:
        os.close(parent_fd)
    return parent / name


def give_folder(folder: Path, *, uid: int | None, mode: int | None = None) -> None:
    """Give an existing folder to `uid`; its content is not touched, links are refused.

    Raises:
        RuntimeFailure: the path is a link or not a folder.
    """
    parent_fd = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _give(folder.name, parent_fd, uid=uid, mode=mode, shown=folder)
    finally:
        os.close(parent_fd)


def _give(name: str, parent_fd: int, *, uid: int | None, mode: int | None, shown: Path) -> None:
    try:
        fd = os.open(name, _OPEN_DIR, dir_fd=parent_fd)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise RuntimeFailure(f"{shown} is a link or a file where a folder is needed") from error
        raise RuntimeFailure(f"{shown} cannot be opened: {error.strerror}") from error
    try:
        if uid is not None and os.geteuid() == 0 and os.fstat(fd).st_uid != uid:
            os.fchown(fd, uid, uid)
        if mode is not None and os.fstat(fd).st_uid in {os.geteuid(), uid}:
            os.fchmod(fd, mode)
    finally:
        os.close(fd)


def open_source(path: Path) -> int:
    """Open a mount's source (`O_PATH`) in a way that no agent can redirect.

    A link on the way is only followed in a folder of root's: everywhere else an agent may have put
    it there, to have something of the server's mounted at the next start (CVE-2024-42472 was that).

    Raises:
        RuntimeFailure: the path has such a link; the message names it.
        OSError: the source cannot be opened.
    """
    todo = list(reversed(path.parts[1:]))
    links = 0
    way = Path("/")
    fd = os.open("/", _OPEN_PATH)
    try:
        while todo:
            name = todo.pop()
            inner = os.open(name, _OPEN_PATH | os.O_NOFOLLOW, dir_fd=fd)
            if not stat.S_ISLNK(os.fstat(inner).st_mode):
                os.close(fd)
                fd, way = inner, way / name
                continue
            os.close(inner)
            links += 1
            _check_link(way / name, owner=os.fstat(fd).st_uid, links=links)
            target = Path(os.readlink(name, dir_fd=fd))
            todo += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            if target.is_absolute():
                os.close(fd)
                fd, way = os.open("/", _OPEN_PATH), Path("/")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_link(link: Path, *, owner: int, links: int) -> None:
    if owner != 0 or links > _MAX_LINKS:
        raise RuntimeFailure(f"{link} is a link", hint="give the path that it leads to")


def half_made(name: str) -> str:
    """Return a name for the unfinished `name`; see `HALF_MADE`."""
    return f".{name}.{os.getpid()}.{secrets.token_hex(4)}"


def write_private(path: Path, data: bytes, *, mode: int = 0o600, uid: int | None = None) -> None:
    """Write a file atomically: a new file beside it, then a rename, so that no reader sees half.

    Neither a planted link nor a planted file is written through.
    """
    temporary = path.with_name(half_made(path.name))
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)  # not left to the umask
            if uid is not None and os.geteuid() == 0:
                os.fchown(file.fileno(), uid, uid)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def closed_folders(path: Path, uid: int) -> list[Path]:
    """The folders on the way to `path`, itself included, that user `uid` may not pass.

    Group rights are not counted: our agents are only in their own group.
    """
    path = path.resolve()
    closed: list[Path] = []
    for folder in (*reversed(path.parents), path):
        try:
            status = folder.stat()
        except OSError:
            closed.append(folder)
            continue
        bit = stat.S_IXUSR if status.st_uid == uid else stat.S_IXOTH
        if stat.S_ISDIR(status.st_mode) and not status.st_mode & bit:
            closed.append(folder)
    return closed


def let_pass(folder: Path) -> None:
    """Let every user pass through a folder of ours (`o+x`), not list it."""
    fd = os.open(folder, _OPEN_DIR)
    try:
        status = os.fstat(fd)
        if status.st_uid == os.geteuid():
            os.fchmod(fd, stat.S_IMODE(status.st_mode) | stat.S_IXOTH)
    finally:
        os.close(fd)


def clear_away(folder: Path) -> None:
    """Remove a runtime folder and its content; links in it are removed, never followed."""
    if folder.is_symlink():
        folder.unlink()
        return
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def beside(runtime_dir: Path, suffix: str) -> Path:
    """The path of the file or folder `<8 hex>.<suffix>`."""
    return runtime_dir.with_name(f"{runtime_dir.name}.{suffix}")


def forget_beside(runtime_dir: Path) -> None:
    """Remove everything beside the runtime folder, the record last."""
    clear_away(beside(runtime_dir, "spool"))
    for suffix in ("log", "status", "json"):
        beside(runtime_dir, suffix).unlink(missing_ok=True)
