"""Checks of `oubliette doctor`, one function each, with the remedy."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from oubliette.errors import HomeInUse, OublietteError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oubliette.config.schema import Config

Status = Literal["ok", "warn", "fail"]

PYTHON: Final = (3, 11)
FREE_FAIL: Final = 100 * 1024 * 1024  # bytes
FREE_WARN: Final = 1024 * 1024 * 1024  # bytes
START_SECONDS: Final = 20.0
ANSWER_SECONDS: Final = 2.0
PROJECT_SECONDS: Final = 10.0
READ_SECONDS: Final = 5.0
"""Time to look for damage in the database; a large one is not read to its end."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One finding."""

    name: str
    status: Status
    detail: str
    remedy: str | None = None
    """Remedy; None when all is well."""
    facts: dict[str, Any] | None = None
    """Details for programs, if there are more: under `agent` or `credential`."""


def ok(name: str, detail: str) -> Check:
    """A finding without a problem."""
    return Check(name=name, status="ok", detail=detail)


def bad(name: str, detail: str, remedy: str | None, status: Status = "fail") -> Check:
    """A finding with a problem, certain or (`warn`) possible."""
    return Check(name=name, status=status, detail=detail, remedy=remedy)


def failed(name: str, error: OublietteError, remedy: str = "see the message") -> Check:
    """Return the finding for an error; `remedy` if it has no hint of its own."""
    return bad(name, error.message, error.hint or remedy)


def python() -> Check:
    """Check the interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON:
        return bad("python", version, f"install Python {PYTHON[0]}.{PYTHON[1]} or later")
    return ok("python", version)


def home(place: Path) -> Check:
    """Check the home: present, ours, closed to others."""
    try:
        state = place.stat()
    except FileNotFoundError:
        return bad("home", f"{place} does not exist yet", "oubliette serve creates it", "warn")
    except OSError as error:
        return bad("home", f"{place}: {error.strerror}", "choose another one with --home")
    if not place.is_dir():
        return bad("home", f"{place} is not a folder", "choose another one with --home")
    if state.st_uid != os.geteuid():
        return bad("home", f"{place} belongs to user {state.st_uid}", f"chown it, or use {_WHO}")
    if state.st_mode & 0o077:
        return bad("home", f"others may enter {place}", f"chmod 700 {place}", "warn")
    return ok("home", str(place))


_WHO = "the user that it belongs to"


def users(place: Path, config: Config) -> Iterator[Check]:
    """Check that a server of root's has users for projects; nothing is found where it has."""
    from oubliette.runtime.files import project_users

    try:
        if place.is_dir():
            project_users.check(place, config.containers.uid)
    except OSError:
        return  # a finding about the home
    except OublietteError as error:
        yield failed("users", error)


def disk(place: Path) -> Check:
    """Check the free space for the log."""
    # A folder that may not be entered counts as absent: its parent is on the same disk, mostly.
    folder = next(each for each in (place, *place.parents) if os.path.exists(each))  # noqa: PTH110
    free = shutil.disk_usage(folder).free
    text = f"{free // (1024 * 1024)} MiB free at {folder}"
    if free < FREE_FAIL:
        return bad("disk", text, "free some space, or choose another --home")
    if free < FREE_WARN:
        return bad("disk", text, "session_cleanup deletes old logs", "warn")
    return ok("disk", text)


def server(place: Path) -> tuple[Check, bool]:
    """Check whether a server runs on this home, and which process holds its lock."""
    from oubliette.api.control import ControlClient
    from oubliette.runtime.files.home import LOCK, HomeLock

    try:
        with ControlClient(place) as client:
            if not client.answers(ANSWER_SECONDS):
                return _starting(place), True
            state = client.status()
        return ok("server", f"runs as process {state.get('pid')} at {state.get('url')}"), True
    except Unavailable as error:
        reason = error.message
    except OublietteError as error:
        return failed("server", error), True
    try:
        if not (place / LOCK).exists():
            return ok("server", "none runs on this home"), False
        with HomeLock(place):
            return ok("server", "none runs on this home"), False
    except HomeInUse as error:
        return (
            bad("server", f"{error.message}, but {reason}", "wait until it has started"),
            True,
        )
    except OSError as error:
        return bad("server", f"{place / LOCK}: {error.strerror}", f"check the rights of {place}"), (
            False
        )


def projects(place: Path) -> Iterator[Check]:
    """Check what the running server knows of its projects."""
    from oubliette.api.control import ControlClient

    found = cursor = None
    try:
        with ControlClient(place) as client:
            while found is None or cursor is not None:
                found = client.call("project_list", {"cursor": cursor}, PROJECT_SECONDS)
                cursor = found["next_cursor"]
                for each in found["projects"]:
                    one = client.call("project_get", {"project_id": each["id"]}, PROJECT_SECONDS)
                    if one["problem"] is not None:
                        yield bad(
                            "project",
                            f"{each['name']} ({each['id']}) cannot be used: {one['problem']}",
                            f"look at {place / 'projects' / each['id']}, or delete the project",
                        )
    except OublietteError as error:
        yield failed("project", error)


def _starting(place: Path) -> Check:
    from oubliette.runtime.files.home import LOCK

    owner = (place / LOCK).read_text(encoding="ascii", errors="replace").strip()[:20]
    return bad(
        "server",
        f"process {owner} is starting, or too busy to answer within {ANSWER_SECONDS:g} s",
        "try again in a moment; read its log",
        "warn",
    )


def port(config: Config, *, running: bool) -> Check:
    """Check that the listener's address is free."""
    from oubliette.mcp_front.transport.listen_errors import taken_hint

    host, number = config.server.host, config.server.port
    where = f"{host}:{number}"
    if running:
        return ok("port", "the server has its address")
    try:
        family = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, number))
    except OSError as error:
        return bad(
            "port",
            f"{where}: {error.strerror or error}",
            taken_hint(error, host, number),
        )
    return ok("port", f"{where} is free")


def database(path: Path) -> Check:
    """Check the version of the database, without changing it."""
    from oubliette.runtime.store.errors import mending, remedy
    from oubliette.runtime.store.migrations import check, released

    newest = released()[-1].version
    try:
        if not path.exists():
            return ok("database", f"none yet; it will have schema {newest}")
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=2.0)) as connection:
            version = check(connection, newest)
            damage = _damage(connection)
    except OublietteError as error:
        return failed("database", error, "move the file away, or choose another --home")
    except OSError as error:
        return bad("database", f"{path}: {error.strerror}", f"check the rights of {path.parent}")
    except sqlite3.Error as error:
        return bad("database", f"{path}: {error}", remedy(error, path))
    if damage is not None:
        return bad("database", f"{path}: {damage}", mending(path))
    if version < newest:
        return ok("database", f"schema {version}; serve will bring it to {newest}")
    return ok("database", f"schema {version}")


def _damage(connection: sqlite3.Connection) -> str | None:
    """The first damage of a file, None if there is none in what can be read in time."""
    until = time.monotonic() + READ_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > until, 10_000)
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            return None
        raise
    return None if found == "ok" else str(found).removeprefix("*** in database main ***\n")


def postgres(url: str) -> Check:
    """Check that the configured database can be read, without changing it."""
    from oubliette.runtime.store.opening import open_database

    try:
        version = open_database(url, Path(), read_only=True).version
    except OublietteError as error:
        return failed("database", error, "look whether its server runs, and try it with psql")
    return ok("database", f"PostgreSQL, schema {version}" if version else "PostgreSQL, empty yet")


def zipapp() -> tuple[Check, Path | None]:
    """Check the program for containers: present, and it starts."""
    from oubliette.runtime.zipapp import zipapp_path

    try:
        path = zipapp_path()
    except OublietteError as error:
        return failed("zipapp", error), None
    except OSError as error:
        return bad("zipapp", f"cannot be built: {error}", "reinstall oubliette"), None
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(path), "host", "--help"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return bad("zipapp", f"{path} does not start: {error}", "reinstall oubliette"), None
    # The guest is there and reads its options; that it works is tested in a container.
    if b"host:" not in done.stdout + done.stderr:
        said = done.stderr.decode(errors="replace").strip()[-200:]
        return bad("zipapp", f"{path} does not start: {said}", "reinstall oubliette"), None
    return ok("zipapp", str(path)), path


def snapshots(config: Config) -> Check:
    """Check the program that stores snapshots of workspaces."""
    if config.snapshots.mode == "off" and not config.cluster.snapshots:
        return ok("snapshots", "off, as configured")
    path = shutil.which("git")
    if path is None:
        return bad("snapshots", "none, as git is missing", "install git", "warn")
    return ok("snapshots", path)


def git() -> Iterator[Check]:
    """Check git for a vulnerability that repositories with submodules use (CVE-2025-48384).

    Distributions mend it without another version, so git is asked to keep a carriage return.
    """
    path = shutil.which("git")
    if path is None:
        return
    environment = {"PATH": os.environ.get("PATH", os.defpath), "GIT_CONFIG_NOSYSTEM": "1"}
    outputs: list[bytes] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            own = {**environment, "HOME": folder}
            setting = ("config", "-z", "-f", f"{folder}/config", "oubliette.path")
            for arguments in (("--version",), (*setting, _PATH), setting):
                done = subprocess.run(
                    [path, *arguments],
                    cwd=folder,
                    env=own,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=START_SECONDS,
                    check=True,
                )
                outputs.append(done.stdout)
    except (OSError, subprocess.SubprocessError) as error:
        yield bad("git", f"{path} does not work: {error}", "install git again")
        return
    version = outputs[0].decode(errors="replace").strip()
    if outputs[-1] == _PATH.encode() + b"\0":
        yield ok("git", version)
        return
    yield bad(
        "git",
        f"{version} has the vulnerability CVE-2025-48384: a repository with submodules can write"
        " outside of its folder",
        "update git from your distribution, or to 2.43.7, 2.44.4, 2.45.4, 2.46.4, 2.47.3, 2.48.2,"
        " 2.49.1, 2.50.1 or later; until then clone without submodules",
        "warn",
    )


_PATH: Final = "path\r"
"""A path that a vulnerable git writes into its configuration as another one."""


def settings(load: Callable[[], Config]) -> tuple[Check, Config | None]:
    """Check the configuration."""
    try:
        config = load()
    except OublietteError as error:
        return failed("configuration", error, "oubliette config schema lists the valid keys"), None
    return ok("configuration", "valid"), config


def without_sandbox(place: Path, load: Callable[[], Config]) -> Iterator[Check | Config]:
    """Run all checks that start no container; the last finding has the configuration, if valid."""
    yield python()
    yield home(place)
    found, config = settings(load)
    yield found
    if config is not None:
        yield from users(place, config)
    yield disk(place)
    runs, running = server(place)
    yield runs
    if running and runs.status == "ok":
        yield from projects(place)
    if config is not None:
        yield port(config, running=running)
    from oubliette.runtime.files.home import DATABASE

    if config is not None and config.store.database:
        yield postgres(config.store.database)
    else:
        yield database(place / DATABASE)
    if config is not None:
        yield snapshots(config)
        yield from git()
        yield config
