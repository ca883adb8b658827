"""A server of three nodes for the suites of one: on real Ray, with a real PostgreSQL.

The cluster is started once per process of the test run, and each module has three new nodes with
homes and a database of their own. Callers talk to the last node, which takes no projects: nobody is
where its sessions are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from oubliette.runtime.containers.process import adoption
from oubliette.testing.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.containers.process import procfs

ROOT: Final = Path(__file__).parents[2]
END: Final = 60.0  # seconds for all processes of a cluster to end


class RayOfRun:
    """Ray and PostgreSQL for a run of tests, and the process that owns them; use as a context."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes
        # Short, because Ray makes sockets in it.
        self.folder = Path(tempfile.mkdtemp(prefix="obr", dir="/tmp"))
        self._turn = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        clean = {name: value for name, value in os.environ.items() if "OUBLIETTE_" not in name}
        with (self.folder / "err").open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.keeper", str(self.folder / "c"), *self.nodes],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env={**clean, "PYTHONPATH": str(ROOT)},
                # A signal to the suite's group must not end it before it has ended its nodes.
                start_new_session=True,
            )
        try:
            self._line()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin and process.stdout
        process.stdin.close()
        try:
            process.wait(END)
        finally:
            process.kill()
            process.wait(END)
            process.stdout.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def do(self, **order: Any) -> Any:
        """Have something done to nodes; see `keeper`."""
        with self._turn:
            assert self._process and self._process.stdin
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            answer = self._line()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["done"]

    def _line(self) -> Any:
        assert self._process and self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Ray ended: {(self.folder / 'err').read_text()[-2000:]}")
        return json.loads(line)


class ClusterProcess(ServerProcess):
    """The face of one server, and three nodes behind it.

    `url` is that of the last node, on which no session lives; `home` and `control` are those of the
    first.
    """

    def __init__(self, ray: RayOfRun, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(settings=settings)
        self.folder = self.home
        self.folder.chmod(0o711)
        self._ray = ray
        self._database = str(ray.do(database=""))
        self._settings["store.database"] = self._database
        self.home = self.folder / ray.nodes[0]
        self._started = False

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._started:
                await asyncio.to_thread(self._ray.do, stop=list(self._ray.nodes))
            await self._sweep()
        finally:
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
            await asyncio.to_thread(self._ray.do, drop=self._database)

    async def start(self) -> Self:
        """Start the nodes; the last one takes no projects.

        Raises:
            RuntimeError: one did not start; has the end of the logs.
        """
        self._started = True
        for node in self._ray.nodes:
            self._configure(node)
        nodes = list(self._ray.nodes)
        try:
            states = await asyncio.to_thread(self._ray.do, start=nodes, homes=str(self.folder))
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{self.log()[-4000:]}") from None
        self.pid = states[nodes[0]]["pid"]
        self.url = await asyncio.to_thread(self._keep_free, nodes[-1])
        return self

    def _configure(self, node: str) -> None:
        home = self.folder / node
        home.mkdir(mode=0o700)
        mine = {"server.port": 0, **self._settings, "containers.runtime_dir": home / "r"}
        lines = [f"{key} = {_toml(value)}" for key, value in mine.items() if value is not None]
        (home / "oubliette.toml").write_text("\n".join(lines) + "\n")

    def _keep_free(self, node: str) -> str:
        """Let the node take no projects; its address."""
        import psycopg

        from oubliette.runtime.store.postgres.cluster import nodes

        with psycopg.connect(self._database, autocommit=True) as connection:
            nodes.set_draining(connection, node, draining=True)
            return next(each.address for each in nodes.all_nodes(connection) if each.name == node)

    # ------------------------------------------------------------ inspect
    def log(self) -> str:
        """Return the logs of all nodes, one after another."""
        found = [self.folder / node / "server.log" for node in self._ray.nodes]
        return "".join(each.read_text(errors="replace") for each in found if each.exists())

    def home_of(self, project_id: str) -> Path:
        """The home of the node that a project is on."""
        ((node,),) = self.query("SELECT node FROM placements WHERE project_id = ?", project_id)
        return self.folder / str(node)

    def containers(self) -> dict[str, procfs.HostProcess]:
        """Return container id → guest process, of all nodes."""
        found: dict[str, procfs.HostProcess] = {}
        instance = self.instance()
        for node in self._ray.nodes if instance else ():
            living = adoption.find_living(f"{instance}-{node}", sandboxed=self.sandboxed)
            found |= {container_id: each.process for container_id, each in living.items()}
        return found


def _toml(value: object) -> str:
    with contextlib.suppress(TypeError):
        return json.dumps(value)
    return json.dumps(str(value))
