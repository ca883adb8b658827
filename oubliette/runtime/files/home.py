"""Home of one server: its folder, its lock."""

from __future__ import annotations

import fcntl
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Self

from oubliette.errors import ConfigError, HomeInUse
from oubliette.runtime.files import file_locks

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

LOCK: Final = "lock"
DATABASE: Final = "oubliette.db"
CONTROL_SOCKET: Final = "control.sock"
IN_USE_HINT: Final = "stop it, or choose another home with --home"


def prepare(home: Path) -> None:
    """Make the home, 0700; one that a server has opened for passing (0711) stays so.

    Agents without a sandbox that run as another user access their files, their programs and the
    relay through it, and they go on when their server is killed: neither the next one nor a command
    may lock them out until then. A server without such agents closes it (`close`).

    Raises:
        ConfigError: the folder cannot be made, or belongs to another user.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = home.stat()
        if status.st_uid != os.geteuid():
            raise ConfigError(f"{home} belongs to user {status.st_uid}, not to {os.geteuid()}")
        if status.st_mode & 0o066:
            home.chmod(0o700)
    except OSError as error:
        raise _unusable(home, error) from error


def is_there(home: Path) -> bool:
    """Whether the home exists.

    Raises:
        ConfigError: this user may not look.
    """
    try:
        return home.exists()
    except OSError as error:
        raise _unusable(home, error) from error


def _unusable(home: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{home} cannot be used: {error.strerror}",
        hint="it has to be a folder that this user may make and write to: set OUBLIETTE_HOME, or"
        " pass --home",
    )


def close(home: Path) -> None:
    """Remove other users' access through the home."""
    if home.stat().st_mode & 0o077:
        home.chmod(0o700)


class HomeLock:
    """Lock of the one program that may write to a home. The system releases it if that ends."""

    def __init__(self, home: Path) -> None:
        self._path = home / LOCK
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock without waiting.

        Raises:
            HomeInUse: another process holds it; the message names it.
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(fd, 32, 0).decode(errors="replace").strip()
            since = datetime.fromtimestamp(os.fstat(fd).st_mtime, UTC)
            os.close(fd)
            who = f"another process ({owner or 'unknown'}) uses"
            if owner == str(os.getpid()):
                who = f"this process ({owner}) already uses"
            raise HomeInUse(
                f"{who} {self._path.parent}, since {since:%Y-%m-%d %H:%M:%S}Z", hint=IN_USE_HINT
            ) from None
        self._taken(fd)

    def wait(self) -> None:
        """Take the lock once no other process holds it. Blocks; see `cli.lock_wait`."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except BaseException:
            os.close(fd)
            raise
        self._taken(fd)

    def _taken(self, fd: int) -> None:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd
        file_locks.hold(fd)

    def release(self) -> None:
        if self._fd >= 0:
            file_locks.release(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
