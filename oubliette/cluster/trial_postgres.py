"""The PostgreSQL of a trial cluster: a server of its own, on a Unix socket alone, in its folder.

The server refuses to run as root, so there the user `postgres` runs it, in a folder of mode 0700
that belongs to that user. Nothing is written there by root but by the server's own programs: its
configuration is beside it. A client is recognised by its user, which the kernel vouches for; there
is no password.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.cluster.owned_process import OwnedProcess, launch
from oubliette.errors import ConfigError, RuntimeFailure
from oubliette.runtime.containers.host_paths import closed_folders, write_private

if TYPE_CHECKING:
    from collections.abc import Iterator

START_SECONDS: Final = 60.0
"""Time for a start, which may have a crash to recover from."""
USER: Final = "postgres"
"""User that runs the server where this is root."""
ROLE: Final = "oubliette"
DATABASE: Final = "postgres"
_INITIALIZE_SECONDS: Final = 120.0
_DEBIAN: Final = Path("/usr/lib/postgresql")
_INSTALL: Final = (
    "install PostgreSQL 13 or later (apt-get install postgresql), or give a database with"
    " --database postgresql://…"
)


def folder_of_programs() -> Path | None:
    """Return the folder of `initdb` and `postgres`; Debian has it beside the PATH."""
    for candidate in _candidates():
        if (candidate / "initdb").exists() and (candidate / "postgres").exists():
            return candidate
    return None


def _candidates() -> Iterator[Path]:
    found = shutil.which("initdb")
    if found is not None:
        yield Path(found).parent
        yield Path(found).resolve().parent
    versions = _DEBIAN.glob("[0-9]*")
    for version in sorted(versions, key=lambda each: int(each.name.partition(".")[0]))[::-1]:
        yield version / "bin"


def url(folder: Path) -> str:
    """Return the address of the database; it has no password."""
    return f"postgresql://{ROLE}@/{DATABASE}?host={folder / 'pg'}"


def start(folder: Path, *, connections: int) -> str:
    """Start the server of a cluster's folder, with an empty database at the first time.

    Args:
        folder: of the cluster.
        connections: that it must be able to serve.

    Returns:
        The address of its database.

    Raises:
        ConfigError: no server can be run on this machine; names the remedy.
        RuntimeFailure: it was not started.
    """
    programs = folder_of_programs()
    if programs is None:
        raise ConfigError("A trial cluster needs PostgreSQL, and has none here", hint=_INSTALL)
    user = _user()
    if running(folder) is not None:
        return url(folder)
    place = folder / "pg"
    _make(place, user)
    _configure(folder / "pg-config", place, connections)
    if not (place / "data").exists():
        _initialize(programs, place, user)
    launch(
        [
            str(programs / "postgres"),
            "-D",
            str(place / "data"),
            f"--config-file={folder / 'pg-config' / 'postgresql.conf'}",
        ],
        folder / "postgres.out",
        folder / "postgres.err",
        complete=lambda _: _is_ready(folder),
        seconds=START_SECONDS,
        user=None if user is None else (user.pw_uid, user.pw_gid),
    )
    return url(folder)


def running(folder: Path) -> OwnedProcess | None:
    """The server's first process, if it runs."""
    data = folder / "pg" / "data"
    lines = _lines(data)
    if not lines or not lines[0].isdecimal():
        return None
    process = OwnedProcess.of(int(lines[0]))
    try:  # the id may be another process's by now
        there = Path(f"/proc/{process.pid}/cwd").readlink()
    except OSError:
        return None
    return process if process.runs and there == data.resolve() else None


def stop(folder: Path) -> bool:
    """End the server of the folder in order; return whether one was running.

    Connections that are left are closed; what they had committed is kept.
    """
    process = running(folder)
    if process is None:
        return False
    process.end(signal.SIGINT)  # "fast": connections are not waited for
    return True


# ---------------------------------------------------------------- steps
def _user() -> pwd.struct_passwd | None:
    """Return the user that runs the server; None: the one that runs this."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        # Not `nobody`: agents may run as that.
        raise ConfigError(
            f"PostgreSQL does not run as root, and this machine has no user {USER}",
            hint=f"make one (useradd --system {USER}), run this as an ordinary user, or give a"
            " database with --database postgresql://…",
        ) from None


def _make(place: Path, user: pwd.struct_passwd | None) -> None:
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
        if user is not None:
            os.chown(place, user.pw_uid, user.pw_gid)
    if user is not None and (closed := closed_folders(place, user.pw_uid)):
        raise ConfigError(
            f"User {user.pw_name}, which runs PostgreSQL, may not pass through {closed[0]}",
            hint="choose another folder with --folder",
        )


def _configure(config: Path, place: Path, connections: int) -> None:
    """Write its configuration, which its user must be able to read; it has no secrets."""
    config.mkdir(mode=0o755, exist_ok=True)
    ours = pwd.getpwuid(os.geteuid()).pw_name
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(place),
        "hba_file": str(config / "pg_hba.conf"),
        "ident_file": str(config / "pg_ident.conf"),
        "max_connections": str(connections),
        "shared_buffers": "64MB",
        "log_min_messages": "warning",
    }
    lines = [f"{name} = {_quoted(value)}\n" for name, value in settings.items()]
    written = {
        "postgresql.conf": "".join(lines),
        "pg_hba.conf": "local all all peer map=trial\n",
        "pg_ident.conf": f'trial "{ours}" {ROLE}\n',
    }
    for name, text in written.items():
        write_private(config / name, text.encode(), mode=0o644)


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _initialize(programs: Path, place: Path, user: pwd.struct_passwd | None) -> None:
    """Make an empty database; it gets its name once it is whole."""
    new = place / "new"
    shutil.rmtree(new, ignore_errors=True)
    command = [programs / "initdb", "-D", new, "-U", ROLE, "--auth=peer"]
    try:
        done = subprocess.run(
            [*map(str, command), "--encoding=UTF8", "--locale=C", "--no-instructions"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_INITIALIZE_SECONDS,
            check=False,
            cwd=place,
            start_new_session=True,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeFailure(f"initdb did not end in {_INITIALIZE_SECONDS:g} s") from error
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise RuntimeFailure(f"initdb failed: {reason}", hint=_INSTALL)
    new.rename(place / "data")


def _is_ready(folder: Path) -> bool:
    if running(folder) is None:  # the record may be of a server that was killed
        return False
    lines = _lines(folder / "pg" / "data")
    return len(lines) >= 8 and lines[7].strip() == "ready"


def _lines(data: Path) -> list[str]:
    """The lines of the server's own record: 1 is its process, 8 its state."""
    try:
        return (data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
