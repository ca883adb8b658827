"""Site, the machines of a chaos run: PostgreSQL, Ray, three nodes, and what can be done to them.

All is below one folder: `c` is Ray's, `n/node1` and so on are the homes of the nodes. A machine is
a raylet with the node that it runs and the containers of that node; all of them end together when
the machine is killed, and what is on its disk stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psutil

from oubliette.api.control import ControlClient
from oubliette.cluster.agent import AgentOrder
from tests.http_client import HttpClient
from tests.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

NODES: Final = ("node1", "node2", "node3")
MAIN: Final = "oubliette.cluster.server_node:main"
ROOT: Final = Path(__file__).parents[2]
LOST_SECONDS: Final = 30
START: Final = 150.0  # seconds for a start on a busy machine
RAY_STARTS: Final = 3
HEALTH_SECONDS: Final = 3.0
"""Time for an answer of a node, after which clients are sent to another one."""
TREE_AGENTS: Final = 10
TREE_AGENTS_AT_ONCE: Final = 4
_SETTINGS: Final = """\
[store]
database = "{database}"
[server]
port = {port}
on_stop = "end"
[process]
sandbox = "{sandbox}"
[containers]
runtime = "process"
runtime_dir = "{home}/r"
[agents]
default = "scripted"
[cluster]
machine_lost_seconds = {lost}
max_live_sessions = 60
labels = ["name={name}"]
[sessions]
max_live_per_project = 100
caller_tool_timeout_seconds = 120
[trees]
max_agents = {agents}
max_agents_at_once = {at_once}
[callers]
stream_grace_seconds = 20
poll_grace_seconds = 30
max_calls_in_flight = 500
calls_per_second = 1000
calls_burst = 1000
"""


class Site:
    """Three machines and a database; a context, in which they run."""

    def __init__(self) -> None:
        # Ray makes Unix sockets in it, whose paths are at most 107 bytes long.
        self.base = Path(tempfile.mkdtemp(prefix="obx", dir="/tmp"))
        self.base.chmod(0o711)
        self.postgres = PostgresServer(max_connections="200")
        self.database = ""
        self.ports = dict(zip(NODES, _free_ports(len(NODES)), strict=True))
        self.raylets: dict[str, list[int]] = {}
        self.keep = False
        """Whether the folder stays, because something was wrong."""
        self._stack = contextlib.ExitStack()
        self._holder: subprocess.Popen[str]
        self._agent: subprocess.Popen[bytes]
        self._address = ""

    # ------------------------------------------------------------ start and end
    def __enter__(self) -> Self:
        try:
            self._stack.callback(self._remove)
            self._stack.enter_context(self.postgres)
            self.database = self.postgres.new_database()
            for name in NODES:
                self._configure(name)
            self._stack.callback(self._end_holder)
            self._start_holder()
            self._stack.callback(self._end_agent)
            self._start_agent()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def home(self, node: str) -> Path:
        """The home of a node."""
        return self.base / "n" / node

    def url(self, node: str) -> str:
        """The address of a node's front end."""
        return f"http://127.0.0.1:{self.ports[node]}/mcp"

    def key(self) -> str:
        """A new key of all nodes."""
        with ControlClient(self.home("node1")) as client:
            made = client.call("token_create", {"scope": "admin", "name": "chaos"})
        return str(made["token"])

    def query(self, sql: str, *parameters: object) -> list[Any]:
        """Rows of the database."""
        name = self.database.rpartition("@/")[2].partition("?")[0]
        return self.postgres.execute(sql, *parameters, database=name)

    def _configure(self, name: str) -> None:
        home = self.home(name)
        home.mkdir(parents=True)
        for each in (home, home.parent):
            each.chmod(0o711)
        text = _SETTINGS.format(
            database=self.database,
            port=self.ports[name],
            sandbox="bubblewrap" if shutil.which("bwrap") else "best-effort",
            home=home,
            lost=LOST_SECONDS,
            name=name,
            agents=TREE_AGENTS,
            at_once=TREE_AGENTS_AT_ONCE,
        )
        (home / "oubliette.toml").write_text(text, encoding="utf-8")

    def _start_holder(self) -> None:
        """Start Ray, whose own deadlines for that are too short for a busy machine."""
        for attempt in range(1, RAY_STARTS + 1):
            with (self.base / "holder.err").open("w") as errors:
                self._holder = subprocess.Popen(
                    [sys.executable, "-m", "tests.cluster.holder", str(self.base / "c"), *NODES],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    cwd=ROOT,
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                )
            try:
                ready = self._line()
                break
            except AssertionError:
                self._end_holder()
                if attempt == RAY_STARTS:
                    raise
                shutil.rmtree(self.base / "c")
        self._address = ready["address"]
        self.raylets = ready["raylets"]

    def _line(self) -> Any:
        assert self._holder.stdout
        line = self._holder.stdout.readline()
        assert line, f"Ray ended: {(self.base / 'holder.err').read_text()[-2000:]}"
        return json.loads(line)

    def _start_agent(self) -> None:
        self._agent = self._run_agent(end=False)

    def _run_agent(self, *, end: bool) -> subprocess.Popen[bytes]:
        order = AgentOrder(
            address=self._address,
            folder=str(self.base / "c"),
            main=MAIN,
            nodes=list(NODES),
            settings={"home": str(self.base / "n")},
            end=end,
        )
        with (
            (self.base / "agent.out").open("ab") as out,
            (self.base / "agent.err").open("ab") as errors,
        ):
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "oubliette.cluster.agent",
                    msgspec.json.encode(order).decode(),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )

    def _end_agent(self) -> None:
        self._agent.terminate()
        try:
            self._agent.wait(30)
        except subprocess.TimeoutExpired:
            self._agent.kill()
            self._agent.wait(10)

    def _end_holder(self) -> None:
        assert self._holder.stdin and self._holder.stdout
        self._holder.stdin.close()
        try:
            self._holder.wait(60)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait(10)
        self._holder.stdout.close()
        for name in NODES:
            for each in self.processes_of(name):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()

    def end_nodes(self) -> list[str]:
        """Stop all nodes in order; what did not end in time."""
        self._end_agent()
        ender = self._run_agent(end=True)
        try:
            ender.wait(120)
        except subprocess.TimeoutExpired:
            ender.kill()
            ender.wait(10)
            return ["the nodes did not end in 120 s"]
        lines = (self.base / "agent.out").read_text(encoding="utf-8").splitlines()
        ended = {each["node"]: each for each in map(json.loads, lines)}
        return [f"{name} did not end in order" for name in NODES if not ended[name].get("in_time")]

    def _remove(self) -> None:
        if not self.keep:
            shutil.rmtree(self.base, ignore_errors=True)

    # ------------------------------------------------------------ nodes
    def pid(self, node: str) -> int | None:
        """The process that serves a node now."""
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                for found in each.net_connections("tcp"):
                    at = found.laddr
                    if found.status == psutil.CONN_LISTEN and at.port == self.ports[node]:
                        return each.pid
        return None

    async def ready(self, node: str, seconds: float = START) -> None:
        """Wait until a node serves."""
        ends = time.monotonic() + seconds
        while not await self.answers(node, "/ready"):
            assert time.monotonic() < ends, f"{node} is not ready after {seconds:g} s"
            await asyncio.sleep(0.2)  # it is another process, which gives no notice

    async def answers(self, node: str, path: str = "/health") -> bool:
        """Whether a node answers in time that it is well."""
        client = HttpClient(f"http://127.0.0.1:{self.ports[node]}{path}")
        try:
            async with (
                asyncio.timeout(HEALTH_SECONDS),
                client.request("GET") as response,
            ):
                await response.body()
                return response.status == 200
        except (OSError, EOFError, ValueError, TimeoutError):
            return False
        finally:
            client.kill()

    # ------------------------------------------------------------ what is done to them
    def kill_machine(self, node: str, found: list[psutil.Process]) -> None:
        """End all processes of a machine at once: those that were found, and what they started."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for each in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(number)
        psutil.wait_procs(found, 10)
        for each in self.below(self.home(node)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()

    def add_machine(self, node: str) -> None:
        """Start a machine that was killed."""
        assert self._holder.stdin
        self._holder.stdin.write(f"add {node}\n")
        self._holder.stdin.flush()
        self.raylets = self._line()["raylets"]

    def processes_of(self, node: str) -> list[psutil.Process]:
        """All processes of a machine that run: its raylet, its node, its containers."""
        found: dict[int, psutil.Process] = {}
        for pid in self.raylets.get(node, ()):
            with contextlib.suppress(psutil.NoSuchProcess):
                raylet = psutil.Process(pid)
                if "raylet" in raylet.name():
                    found.update((each.pid, each) for each in _family(raylet))
        for each in self.below(self.home(node)):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.update((member.pid, member) for member in _family(each))
        found.pop(os.getpid(), None)
        return list(found.values())

    def below(self, folder: Path) -> Iterator[psutil.Process]:
        """Processes that name a folder, or one below it, in their arguments or work in it."""
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = [*each.cmdline(), each.cwd()]
                if any(f"{folder}/" in f"{word}/" for word in words):
                    yield each


def _family(parent: psutil.Process) -> list[psutil.Process]:
    return [parent, *parent.children(recursive=True)]


def _free_ports(count: int) -> list[int]:
    """Ports that the kernel gives nobody who asks for any: Ray's processes would take them."""
    ports: list[int] = []
    for port in random.sample(range(10_000, 16_000), 6_000):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            break
    return ports
