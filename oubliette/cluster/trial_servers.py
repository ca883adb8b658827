"""A trial cluster of servers: its folder, its PostgreSQL, its nodes' homes, and the trial of these.

The home of node1 is the folder `node1` in the cluster's, and so on. Its configuration there is made
at the first start, and belongs to the user from then on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oubliette.cluster import trial, trial_postgres
from oubliette.cluster.machine import MAIN
from oubliette.cluster.node_homes import configure, database_of, is_configured
from oubliette.errors import ConfigError, Conflict, HomeInUse, NotFound
from oubliette.runtime.files.home import HomeLock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

MOST_BYTES: Final = 35
"""Length of the folder's path: 107 bytes, which a socket's may have, less what Ray appends."""
CONNECTIONS: Final = 40
"""Connections of one node to the database, at most."""
_OF_NODES: Final = frozenset(
    {"OUBLIETTE_SERVER__PORT", "OUBLIETTE_STORE__DATABASE", "OUBLIETTE_CONTAINERS__RUNTIME_DIR"}
)
"""Variables that cannot be the same for all nodes, or are in their files."""


def default_folder() -> Path:
    """Return the folder of trial clusters of this user; short, as it has to be.

    The user that runs PostgreSQL for root has to pass through it, which root's own folder forbids.
    """
    return Path("/var/lib/oub-trial") if os.geteuid() == 0 else Path.home() / ".oub-trial"


def up(
    folder: Path,
    nodes: int,
    *,
    database: str = "",
    first_port: int = 0,
    report: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Start a trial cluster of servers, with a PostgreSQL of its own unless a database is given.

    If it fails, or is interrupted, all that it has started is ended.

    Args:
        folder: of the cluster; made if it is missing.
        nodes: number of nodes.
        database: address of an empty database, or of the one of an earlier start.
        first_port: TCP port of node1, the next ones those of the others; 0: any free ones.
        report: called with each step that was done.

    Returns:
        The status of `trial.status`.

    Raises:
        ConfigError: this machine or the folder is unsuitable, or a package is missing; names the
            remedy.
        AlreadyExists: a cluster of this folder is running.
        Conflict: the folder's nodes have another database, or another command uses it.
        RuntimeFailure: it was not started; the message has the end of a log.
    """
    check_packages()
    if database:
        check_database(database)
    check_path(folder)
    _prepare(folder)
    with _locked(folder):
        trial.check_not_running(folder)
        try:
            url = database
            if not url:
                url = trial_postgres.start(folder, connections=20 + CONNECTIONS * nodes)
                report("PostgreSQL runs")
            _configure(folder, trial.names_of(nodes), url, first_port)
            settings = {"home": str(folder)}
            return trial.up(
                folder, nodes, MAIN, settings, environment=_environment(), report=report
            )
        except BaseException:
            trial_postgres.stop(folder)
            raise


def down(
    folder: Path, *, purge: bool = False, report: Callable[[str], object] = lambda _: None
) -> bool:
    """End a trial cluster: its nodes in order, Ray, and the PostgreSQL that was started for it.

    Args:
        folder: of the cluster.
        purge: Whether to remove the folder with all data of the nodes.
        report: called with each step that was done.

    Returns:
        Whether anything was running.

    Raises:
        NotFound: there is no such folder, or it is not of a cluster.
        Conflict: another command uses it.
    """
    if not is_cluster(folder):
        raise NotFound(f"{folder} has no cluster", hint="choose its folder with --folder")
    with _locked(folder):
        ended = False
        if trial.read(folder) is not None:
            ended = trial.down(folder, report=report)
            if ended:
                report("Ray has ended")
        if trial_postgres.stop(folder):
            report("PostgreSQL has ended")
            ended = True
        if purge:
            shutil.rmtree(folder)
    return ended


def is_cluster(folder: Path) -> bool:
    """Whether the folder is that of a trial cluster, which may have ended."""
    return is_configured(folder / "node1") or (folder / trial.STATE_FILE).exists()


def database_of_cluster(folder: Path) -> str:
    """The address of the cluster's database.

    Raises:
        NotFound: the folder has no cluster.
    """
    if not is_cluster(folder):
        raise NotFound(f"{folder} has no cluster", hint="oubliette cluster up --local")
    return database_of(folder / "node1")


# ---------------------------------------------------------------- what is needed
def check_packages(*names: str) -> None:
    """Refuse where the extra `cluster` is not installed.

    Args:
        names: of the packages that are needed; none: all of the extra.

    Raises:
        ConfigError: it is so; has the command that installs it.
    """
    if not hasattr(os, "pidfd_open"):
        raise ConfigError(f"A cluster needs Linux; this is {sys.platform}")
    missing = [name for name in names or ("ray", "psycopg") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"A cluster needs {' and '.join(missing)}, which is not installed",
            hint="pip install 'oubliette-agents[cluster]'",
        )


def check_database(database: str) -> None:
    """Refuse what cannot be the database of a cluster.

    Raises:
        ConfigError: it is no address of PostgreSQL.
    """
    if database.partition("://")[0] not in {"postgresql", "postgres"}:
        raise ConfigError(
            "--database: a cluster needs a PostgreSQL database",
            hint="postgresql://HOST/NAME; a password is better kept in ~/.pgpass",
        )


def check_path(folder: Path) -> None:
    """Refuse a folder in which Ray's sockets would have too long paths.

    Raises:
        ConfigError: it is so.
    """
    size = len(os.fsencode(folder))
    if size > MOST_BYTES:
        raise ConfigError(
            f"The path of the cluster's folder has {size} bytes, {MOST_BYTES} are possible, since"
            f" Ray makes sockets in it: {folder}",
            hint=f"choose another one: --folder /tmp/oub-{os.geteuid()}",
        )


def _prepare(folder: Path) -> None:
    """Make the folder; as root others pass through it, to PostgreSQL and to agents' files."""
    mode = 0o711 if os.geteuid() == 0 else 0o700
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=mode, parents=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise ConfigError(
            f"{folder} is not a folder of this user",
            hint="another user may have planted it; choose another one with --folder",
        )
    if not is_cluster(folder) and any(each.name != "lock" for each in folder.iterdir()):
        raise ConfigError(f"{folder} has other files", hint="choose a new folder with --folder")
    folder.chmod(mode)


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None]:
    lock = HomeLock(folder)
    try:
        lock.acquire()
    except HomeInUse as error:
        raise Conflict(error.message, hint="wait until it is done, then try again") from error
    try:
        yield
    finally:
        lock.release()


# ---------------------------------------------------------------- nodes' homes
def _configure(folder: Path, names: list[str], database: str, first_port: int) -> None:
    """Write the configuration of each node that has none.

    Raises:
        Conflict: a node has another database, or another port than was asked for.
    """
    new = [name for name in names if not is_configured(folder / name)]
    ports = dict(zip(new, _free_ports(len(new)), strict=True))
    if first_port:
        ports = {name: first_port + place for place, name in enumerate(names)}
    for name in names:
        home = folder / name
        settings: dict[str, object] = {"store.database": database}
        if name in ports:
            settings["server.port"] = ports[name]
        if name in new:
            # What is started here is to be gone after `down`; a node that is killed ends nothing.
            settings["server.on_stop"] = "end"
            settings["containers.runtime_dir"] = str(home / "run")
        configure(home, settings, command="oubliette cluster up")


def _free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that are free now; each is another one."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports.append(listener.getsockname()[1])
        return ports


def _environment() -> dict[str, str]:
    """Return the environment of the cluster's processes: settings of all nodes, and no keys."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OUBLIETTE_") or ("__" in name and name not in _OF_NODES)
    }
