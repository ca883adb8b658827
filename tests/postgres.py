"""A real PostgreSQL server for tests: a folder of its own, a unix socket, nothing listens on TCP.

One server per process of the test run, started when the first test asks for it; each test gets a
database of its own. A server that is to be stopped or killed is best its own (`own_server`).
Servers refuse to run as root, so there the folder belongs to an ordinary user, who runs it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

START_SECONDS: Final = 60.0
"""Time that a start may take, on a busy machine and after a crash."""
SOCKET: Final = ".s.PGSQL.5432"
"""What libpq calls the socket in the folder that it is given as host."""
_OPTIONS: Final = {
    "listen_addresses": "",
    "shared_buffers": "16MB",
    "max_connections": "60",
    # A killed server loses nothing that the system has; only a power cut would.
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_size": "64MB",
    "min_wal_size": "32MB",
    "log_min_messages": "warning",
}


def folder_of_programs() -> Path | None:
    """Where the server's programs are; Debian has them beside, not on, the PATH."""
    found = shutil.which("initdb")
    if found and shutil.which("postgres"):
        return Path(found).resolve().parent
    beside = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return beside[-1].parent if beside else None


def missing() -> str | None:
    """Why no server can be run; None if one can."""
    try:
        import psycopg  # noqa: F401, PLC0415
    except ImportError as error:
        return f"psycopg: {error}"
    if folder_of_programs() is None:
        return "initdb is not on PATH"
    return None if _user() else "there is no ordinary user to run the server"


def _user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


class PostgresServer:
    """One server. `start` and `close`, or as a context; in between it may be ended and restarted.

    Args:
        options: settings of the server beside, or instead of, those of all tests.
    """

    def __init__(self, **options: str) -> None:
        self._options = {**_OPTIONS, **options}
        self._folder: Path | None = None
        self._source: PostgresServer | None = None
        self.most_bytes: int | None = None
        """Size that a file of the server may have, from its next start on."""
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count(1)

    @property
    def folder(self) -> Path:
        """The folder of its data, log and socket; short, as paths of sockets must be."""
        assert self._folder is not None, "the server was not started"
        return self._folder

    @property
    def runs(self) -> bool:
        """Whether it was started, and not ended since."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process that all others of the server come from."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def start(self) -> PostgresServer:
        """Start it, or start it again; returns when it answers."""
        assert self._process is None, "the server runs"
        if self._folder is None:
            self._initialize()
        settings = {**self._options, "unix_socket_directories": str(self.folder)}
        flags = [f"--{name}={value}" for name, value in settings.items()]
        limit = [] if self.most_bytes is None else ["prlimit", f"--fsize={self.most_bytes}:"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*limit, _program("postgres"), "-D", str(self.folder / "data"), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **_as_ordinary_user(),
            )
        self._wait_until_it_answers()
        return self

    def stop(self, mode: str = "fast") -> None:
        """End it in order: "fast" breaks connections, "smart" waits for them, "immediate" crashes."""
        signals = {"fast": signal.SIGINT, "smart": signal.SIGTERM, "immediate": signal.SIGQUIT}
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signals[mode])
            process.wait(START_SECONDS)

    def kill(self) -> None:
        """End all its processes at once, as a machine that goes down does."""
        process, self._process = self._process, None
        if process is None:
            return
        parent = psutil.Process(process.pid)
        parent.suspend()  # it would start others for those that are killed
        children = parent.children(recursive=True)
        for each in (*children, parent):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait(START_SECONDS)
        psutil.wait_procs(children, START_SECONDS)

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop all its processes from running, as a machine that hangs; `resume` goes on."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let paused processes go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it and delete its folder."""
        self.stop("immediate")
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> PostgresServer:
        """Start it."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.close()

    def url(self, database: str = "postgres") -> str:
        """The address of a database."""
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def new_database(self, template: str = "template0") -> str:
        """Make a database, empty or like another; returns its address."""
        name = f"t{next(self._names)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Delete a database, whoever uses it."""
        name = url.rpartition("@/")[2].partition("?")[0]
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def execute(self, sql: str, *parameters: object, database: str = "postgres") -> list:
        """Run one statement on a connection of its own; returns the rows, if it has any."""
        import psycopg  # noqa: PLC0415

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(sql, parameters or None)
            return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def standby(self) -> Iterator[PostgresServer]:
        """A standby that has each commit before its client hears of it; `promote` makes it lead."""
        other = PostgresServer()
        other._options = self._options
        other._source = self
        with other:
            self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            self.execute("SELECT pg_reload_conf()")
            self.wait_for("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
            yield other

    def stop_following(self) -> None:
        """Let a standby get no more of what its server commits."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")
        self.wait_for("SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")

    def promote(self) -> None:
        """Let a standby take over; returns when it takes writes."""
        self.execute("ALTER SYSTEM RESET synchronous_standby_names")
        self.execute("SELECT pg_reload_conf()")
        (promoted,) = self.execute("SELECT pg_promote(true, %s)", int(START_SECONDS))[0]
        assert promoted, self.log()[-2000:]

    def give_address_to(self, other: PostgresServer) -> None:
        """Let clients of this server, which has ended, come to another one instead."""
        for path in (self.folder / SOCKET, self.folder / f"{SOCKET}.lock"):
            path.unlink(missing_ok=True)
        (self.folder / SOCKET).symlink_to(other.folder / SOCKET)

    def url_with(self, other: PostgresServer, database: str) -> str:
        """The address of a database for clients that follow whichever of two servers leads."""
        name = database.rpartition("@/")[2].partition("?")[0]
        hosts = f"{self.folder},{other.folder}"
        return f"postgresql://postgres@/{name}?host={hosts}&target_session_attrs=read-write"

    def end_connections(self) -> None:
        """End all other connections."""
        self.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )

    def log(self) -> str:
        """What the server has said."""
        return (self.folder / "log").read_text(errors="replace")

    def _initialize(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="opg", dir="/tmp"))  # noqa: S108 - short
        user = _user()
        if os.geteuid() == 0 and user is not None:
            os.chown(self._folder, user.pw_uid, user.pw_gid)
        data = ["-D", str(self._folder / "data"), "-U", "postgres", "--no-sync"]
        if self._source is None:
            made_by = ["initdb", *data, "-A", "trust", "-E", "UTF8", "--locale=C"]
            made_by += ["--no-instructions"]
        else:
            copied = ["-h", str(self._source.folder), "--write-recovery-conf", "-c", "fast"]
            made_by = ["pg_basebackup", *data, *copied]
        done = subprocess.run(
            [_program(made_by[0]), *made_by[1:]],
            capture_output=True,
            timeout=START_SECONDS,
            check=False,
            cwd=self._folder,
            **_as_ordinary_user(),
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")

    def _wait_until_it_answers(self) -> None:
        import psycopg  # noqa: PLC0415

        assert self._process is not None
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url()).close()
            except psycopg.OperationalError:
                ended = self._process.poll() is not None
                assert not ended, f"the server ended: {self.log()[-2000:]}"
                assert time.monotonic() < until, f"the server does not answer: {self.log()[-2000:]}"
                time.sleep(0.02)  # nobody tells when it does
            else:
                return

    def wait_for(self, sql: str) -> None:
        """Wait until a statement has an answer."""
        until = time.monotonic() + START_SECONDS
        while not self.execute(sql):
            assert time.monotonic() < until, f"not in time: {sql}: {self.log()[-2000:]}"
            time.sleep(0.02)  # nobody tells when it is so

    def _signal(self, number: int) -> None:
        parent = psutil.Process(self.pid)
        for each in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)


def _program(name: str) -> str:
    folder = folder_of_programs()
    assert folder is not None
    return str(folder / name)


def _as_ordinary_user() -> dict:
    user = _user()
    if os.geteuid() != 0 or user is None:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


# ---------------------------------------------------------------- fixtures
@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The server that tests share; none may end it."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of an empty database that is the test's own."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that the test may stop, kill and restart."""
    with PostgresServer() as server:
        yield server
