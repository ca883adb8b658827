"""Identity of a home: the label of its containers, shared by every copy of it.

Containers carry the label of their instance, and a server adopts all that carry its own. So an
instance may have only one server: a copy of a home needs a new identity (`oubliette home adopt`)
before a server may run on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.errors import HomeInUse
from oubliette.runtime.files import file_locks
from oubliette.runtime.files.home import DATABASE

if TYPE_CHECKING:
    from collections.abc import Generator

INSTANCE: Final = "instance"
PLACE: Final = "place"
"""Keys of the values in the database: the id, and the last home that it was used in."""
_MAX: Final = 8192  # bytes of a lock's text
_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class _Holder(msgspec.Struct, frozen=True):
    pid: int
    home: str
    since: float


@contextlib.contextmanager
def held(base: Path, instance: str, home: Path) -> Generator[None]:
    """Hold the lock of this instance among servers that use the runtime folder `base`.

    Raises:
        HomeInUse: another server holds it; names process, home and time.
    """
    path = base / f"{instance}.lock"
    fd = _acquired(path, instance, home)
    try:
        holder = _Holder(pid=os.getpid(), home=str(home), since=time.time())
        os.ftruncate(fd, 0)
        os.pwrite(fd, msgspec.json.encode(holder), 0)
        yield
        path.unlink(missing_ok=True)
    finally:
        file_locks.release(fd)


def _acquired(path: Path, instance: str, home: Path) -> int:
    while True:
        fd = os.open(path, _OPEN, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(fd, path):
                file_locks.hold(fd)
                return fd
        except BlockingIOError:
            who = _holder(os.pread(fd, _MAX, 0))
            os.close(fd)
            raise HomeInUse(
                f"{home} has the identity of a server that runs: {who} ({instance})",
                hint=f"stop that server; if {home} is a copy of its home, give it an identity of"
                f" its own: oubliette home adopt --home {home}",
            ) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # the holder has removed it in between


def _is(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _holder(text: bytes) -> str:
    try:
        holder = msgspec.json.decode(text, type=_Holder)
    except msgspec.MsgspecError:
        return "which one is not known, it has just begun"
    since = datetime.fromtimestamp(holder.since, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return f"process {holder.pid}, home {holder.home}, since {since}"


def check_place(place: str | None, instance: str, home: Path) -> None:
    """Check that the home is not a copy beside its original.

    Agents of the original may be running though no server does. A home that was moved does not
    exist at its old path any more, and the same home by another path is the same folder.

    Raises:
        HomeInUse: the home is a copy; names the original.
    """
    if place is None or place == str(home):
        return
    other = Path(place)
    try:
        if other.samefile(home) or _instance_at(other) != instance:
            return
    except (OSError, sqlite3.Error):
        return  # it was removed, or access is denied
    raise HomeInUse(
        f"{home} is a copy of {other}, with the same identity ({instance}): a server on it would"
        " take over the agents of the other",
        hint=f"give it an identity of its own: oubliette home adopt --home {home}; or remove"
        f" {other / DATABASE}, if that home is not used any more",
    )


def _instance_at(home: Path) -> str | None:
    database = home / DATABASE
    if not database.is_file():
        return None
    with contextlib.closing(
        sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)
    ) as connection:
        row = connection.execute("SELECT value FROM meta WHERE key = ?", (INSTANCE,)).fetchone()
    return None if row is None else str(row[0])
