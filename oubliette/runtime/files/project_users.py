"""User ids that a server of root's gives to projects: they own the files, and agents run as them.

Root of a user namespace (a container without root, LXC) has the ids of `/proc/self/uid_map` alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from pathlib import Path
from typing import Final

from oubliette.errors import ConfigError

_USUAL: Final = range(200_000, 200_000 + (1 << 30))
"""Of no user of the machine: so many that no two projects get the same."""
_FEW: Final = range(10_000, 60_000)
"""Used if those are not there: a namespace usually has 65,536."""
_MAP: Final = Path("/proc/self/uid_map")
_REMEDY: Final = (
    "run the server as an ordinary user; or give its user namespace at least 65536 user ids"
    " (/etc/subuid), or name one that it has with containers.uid"
)


def new_uid(configured: int | None = None) -> int:
    """The user id for a new project; that of the configuration, if it names one.

    Raises:
        ConfigError: there is none.
    """
    if os.geteuid() != 0:
        return os.geteuid()
    there = _there()
    if configured is not None:
        if not any(configured in each for each in there):
            raise ConfigError(
                f"containers.uid: there is no user id {configured} in the user namespace of this"
                " server",
                hint=f"see {_MAP}",
            )
        return configured
    for wanted in (_USUAL, _FEW):
        possible = [_common(each, wanted) for each in there]
        if any(possible):
            return secrets.choice(max(possible, key=len))
    raise ConfigError(
        "this server is root of a user namespace that has no user ids for agents, which are never"
        " run as root",
        hint=_REMEDY,
    )


def check(home: Path, configured: int | None) -> None:
    """Check that files in `home` can be given to the users of projects.

    Raises:
        ConfigError: there are none, or the system or the file system refuses.
    """
    if os.geteuid() != 0:
        return
    uid = new_uid(configured)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile(dir=home))
        except OSError:
            return  # those who need to write to the home report it
        try:
            os.fchown(file.fileno(), uid, uid)
        except OSError as error:
            raise ConfigError(
                f"{home}: its files cannot be given to the users that agents run as:"
                f" {error.strerror}",
                hint="a server of root needs the capabilities of root (CHOWN, SETUID, SETGID, KILL)"
                " and a file system with owners: run it as an ordinary user, or choose another home"
                " with --home or OUBLIETTE_HOME",
            ) from error


def _there() -> list[range]:
    """Return the user ids of this process' namespace."""
    try:
        lines = _MAP.read_text(encoding="ascii").splitlines()
    except OSError:  # no /proc
        return [range(1 << 32)]
    return [range(int(first), int(first) + int(count)) for first, _, count in map(str.split, lines)]


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))
