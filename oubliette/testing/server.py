"""Real server process for tests: started, killed and restarted on the same home.

    async with ServerProcess() as server:
        await server.start()
        token = server.token("write")
        await server.kill()
        await server.start()          # the same home, the same address

It owns all that it starts: when the block ends, the server, every container of its instance with
all processes in it, and the home are removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast

import msgspec

from oubliette.api.control import ControlClient
from oubliette.errors import OublietteError
from oubliette.runtime.containers.base import LABEL_CONTAINER, LABEL_INSTANCE
from oubliette.runtime.containers.docker.address import FLAVOURS
from oubliette.runtime.containers.docker.client import Engine
from oubliette.runtime.containers.process import adoption, procfs, unsandboxed
from oubliette.runtime.files.home import DATABASE
from oubliette.runtime.zipapp import zipapp_path
from oubliette.testing import fault_injection, protocol_versions

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from oubliette.testing.fork_server import Zygote

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 15.0
ORPHAN_GRACE: Final = 120.0  # seconds; then the remains of a killed test run end


class ServerProcess:
    """One home, and the server that runs on it now.

    Args:
        settings: configuration, `section.key` → value as in the environment; None: the default.
        zygote: fork server; without one, each server is a new interpreter.
    """

    def __init__(
        self, *, settings: Mapping[str, object] | None = None, zygote: Zygote | None = None
    ) -> None:
        # Short, because sockets lie below it.
        self.home = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
        self.url = ""
        self.pid = 0
        self._zygote = zygote
        self._settings: dict[str, object] = {
            "containers.runtime_dir": self.home / "r",
            "containers.orphan_grace_seconds": ORPHAN_GRACE,
            "containers.runtime": "process",
            "server.on_stop": "end",
            "process.sandbox": "bubblewrap" if shutil.which("bwrap") else "best-effort",
            **(settings or {}),
        }
        self.sandboxed = self._settings["process.sandbox"] == "bubblewrap"
        self.engine = str(self._settings["containers.runtime"])
        """`docker` or `podman`; anything else has no engine to query."""
        self._port = 0
        self._stdin: int | None = None
        self._stdout: asyncio.StreamReader | None = None
        self._pipe: asyncio.BaseTransport | None = None
        self._link: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.kill()
            await self._sweep()
        finally:
            await asyncio.to_thread(shutil.rmtree, self.home, ignore_errors=True)

    # ------------------------------------------------------------ life

    async def start(
        self,
        *,
        failpoints: str = "",
        settings: Mapping[str, object] | None = None,
        versions: tuple[int, int] | None = None,
        options: Sequence[str] = (),
    ) -> Self:
        """Start the server and wait until it is ready; the port is the same as before.

        `options` follow the required ones of the command line.
        `versions`: of the relay's protocol, to simulate another release.

        Raises:
            RuntimeError: the server ended instead; has the end of its log.
            TimeoutError: neither, within 30 s.
        """
        assert not self.running
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("OUBLIETTE_")
        }
        environment["OUBLIETTE_FAILPOINTS"] = failpoints
        environment[fault_injection.ENCODE] = os.environ.get(fault_injection.ENCODE, "")
        if versions is not None:
            zipapp = self.home / f"release-{versions[0]}-{versions[1]}.pyz"
            if not zipapp.exists():
                protocol_versions.build(zipapp, zipapp_path(), versions)
            environment |= protocol_versions.variable(zipapp, versions)
        for key, value in {**self._settings, **(settings or {})}.items():
            if value is not None:
                environment["OUBLIETTE_" + key.replace(".", "__").upper()] = str(value)
        arguments = ["serve", "--home", str(self.home), "--port", str(self._port), "-o", "json"]
        arguments += options
        own_in, self._stdin = os.pipe()
        own_out, out = os.pipe()
        log = os.open(self.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            self._begin(arguments, environment, own_in, out, log)
        finally:
            for fd in (own_in, out, log):
                os.close(fd)
        self._stdout = asyncio.StreamReader(limit=1 << 20)  # a census is long
        self._pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(cast("asyncio.StreamReader", self._stdout)),
            os.fdopen(own_out, "rb", buffering=0),
        )
        async with asyncio.timeout(START_SECONDS):
            line = await self._stdout.readline()
        if not line:
            code = await self.ended()
            raise RuntimeError(f"the server ended with {code}:\n{self.log()[-4000:]}")
        self.url = json.loads(line)["url"]
        self._port = int(self.url.split(":")[2].split("/")[0])
        return self

    def _begin(
        self, arguments: list[str], environment: dict[str, str], own: int, out: int, log: int
    ) -> None:
        if self._zygote is not None:
            self.pid, self._link = self._zygote.start(
                arguments, environment, stdin=own, stdout=out, stderr=log
            )
            return
        self._child = subprocess.Popen(
            [sys.executable, "-m", "oubliette.testing.fault_injection", *arguments],
            env=environment,
            stdin=own,
            stdout=out,
            stderr=log,
            start_new_session=True,
        )
        self.pid = self._child.pid

    @property
    def running(self) -> bool:
        """Whether a server was started and its end not awaited yet."""
        return self._link is not None or self._child is not None

    async def ended(self, timeout: float = STOP_SECONDS) -> int:
        """Wait for the server's end; return its exit code, negative for a signal.

        Raises:
            TimeoutError: the server still runs.
        """
        async with asyncio.timeout(timeout):
            if self._link is not None:
                self._link.setblocking(False)
                answer = await asyncio.get_running_loop().sock_recv(self._link, 64)
                self._link.close()
                self._link = None
                code = int(answer)
            else:
                assert self._child is not None
                process = procfs.identify(self._child.pid)
                if process is not None:
                    await procfs.ended(process)
                code = self._child.wait()
                self._child = None
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        return code

    async def kill(self) -> None:
        """Kill it with SIGKILL, and wait for it; no effect if it does not run."""
        if self.running:
            self.signal(signal.SIGKILL)
            await self.ended()

    async def stop(self) -> int:
        """Send SIGTERM; return its exit code.

        Raises:
            TimeoutError: the server still runs; its tasks are at the end of its log.
        """
        self.signal(signal.SIGTERM)
        try:
            return await self.ended()
        except TimeoutError:
            with contextlib.suppress(TimeoutError, OSError, ValueError):
                await self._command(fault_injection.TASKS, timeout=10)
            raise

    def signal(self, number: int) -> None:
        """Send it a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def arm(self, failpoints: str) -> dict[str, Any]:
        """Replace the failpoints ("" removes all), or send a command of `fault_injection`."""
        return await self._command(failpoints, timeout=10)

    async def passes(self, message: str) -> None:
        """Wait until an actor of the running server is about to handle `<Class>.<Message>`.

        Raises:
            TimeoutError: no actor does within a minute.
        """
        await self._command(fault_injection.AWAIT + message, timeout=fault_injection.AWAIT_SECONDS)

    async def census(self) -> dict[str, Any]:
        """Return the live objects of the running server: see `fault_injection.census`."""
        return await self._command(fault_injection.CENSUS, timeout=30)

    async def _command(self, line: str, timeout: float) -> dict[str, Any]:
        assert self._stdin is not None
        assert self._stdout is not None
        os.write(self._stdin, line.encode() + b"\n")
        async with asyncio.timeout(timeout):
            answer: dict[str, Any] = json.loads(await self._stdout.readline())
        assert answer["armed"] == line
        return answer

    # ------------------------------------------------------------ inspect

    @property
    def log_file(self) -> Path:
        """Path of its log, across restarts."""
        return self.home / "server.log"

    def log(self) -> str:
        """Return its whole log."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def control(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool as the operator, through the control socket."""
        with ControlClient(self.home) as client:
            return client.call(tool, arguments)

    def home_of(self, project_id: str) -> Path:
        """Return the home with the files of a project: there is one."""
        del project_id
        return self.home

    def token(self, scope: str = "write", *, principal: str | None = None) -> str:
        """Return a new key."""
        made = self.control("token_create", scope=scope, name="test", principal=principal)
        return str(made["token"])

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Read the database; also while no server runs."""
        if url := str(self._settings.get("store.database", "")):
            from oubliette.runtime.store.postgres.database import PostgresDatabase

            database = PostgresDatabase(url)
            with contextlib.closing(database.connect_read_only()) as rows:
                return rows.execute(sql, values).fetchall()
        with contextlib.closing(
            sqlite3.connect(f"file:{self.home / DATABASE}?mode=ro", uri=True)
        ) as connection:
            return connection.execute(sql, values).fetchall()

    def instance(self) -> str:
        """Return the id of this server's instance; empty before the first start."""
        if "store.database" not in self._settings and not (self.home / DATABASE).exists():
            return ""
        with contextlib.suppress(sqlite3.Error):
            for (value,) in self.query("SELECT value FROM meta WHERE key = 'instance'"):
                return value.decode() if isinstance(value, bytes) else str(value)
        return ""

    def containers(self) -> dict[str, procfs.HostProcess]:
        """Return container id → guest process, of this instance, running."""
        instance = self.instance()
        if not instance:
            return {}
        if self.engine in FLAVOURS:
            with self.api() as api:
                return dict(self._running(api))
        found = adoption.find_living(instance, sandboxed=self.sandboxed)
        return {container_id: living.process for container_id, living in found.items()}

    @contextlib.contextmanager
    def api(self) -> Generator[Any]:
        """Return the engine's API, independent of the server."""
        flavour: Any = self.engine
        host = self._settings.get(f"{self.engine}.host")
        api = Engine(flavour, None if host is None else str(host)).connect()
        try:
            yield api
        finally:
            api.close()

    def _running(self, api: Any) -> Iterator[tuple[str, procfs.HostProcess]]:
        for listed in self._listed(api):
            with contextlib.suppress(Exception):  # it is being removed
                inspected = api.inspect_container(listed["Id"])
                process = procfs.identify(int(inspected["State"]["Pid"]))
                if process is not None:
                    yield inspected["Config"]["Labels"][LABEL_CONTAINER], process

    def _listed(self, api: Any) -> list[dict[str, Any]]:
        label = f"{LABEL_INSTANCE}={self.instance()}"
        return list(api.containers(all=True, filters={"label": [label]}))

    def agents(self, session_id: str) -> list[procfs.HostProcess]:
        """Return the running agent processes of a session."""
        return [
            process
            for pid in procfs.pids()
            if "scripted-agent" in procfs.command_line(pid)
            and procfs.environment(pid).get("OUBLIETTE_SESSION_ID") == session_id
            and (process := procfs.identify(pid)) is not None
        ]

    # ------------------------------------------------------------ clearing up

    async def _sweep(self) -> None:
        """Kill every container of this instance, and wait until it is gone."""
        if self.engine in FLAVOURS:
            await asyncio.to_thread(self._sweep_engine)
            return
        async with asyncio.timeout(STOP_SECONDS):
            for container_id, process in self.containers().items():
                procfs.send_signal(process, signal.SIGKILL)
                await procfs.ended(process)
                if not self.sandboxed:
                    await asyncio.to_thread(unsandboxed.sweep, container_id)

    def _sweep_engine(self) -> None:
        if not self.instance():
            return
        with contextlib.suppress(OublietteError), self.api() as api:
            for each in self._listed(api):
                with contextlib.suppress(Exception):  # removed by another process
                    api.remove_container(each["Id"], force=True, v=True)


def encoded(value: object) -> Any:
    """Return the value as JSON restores it; to compare an event with the stored one."""
    return json.loads(msgspec.json.encode(value))
