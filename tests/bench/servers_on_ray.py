"""ServersOnRay, real servers as nodes of a trial cluster, each in a process of Ray's."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import psutil
import psycopg

from oubliette.api.control import ControlClient
from oubliette.cluster import trial
from oubliette.cluster.machine import MAIN
from oubliette.cluster.node_homes import configure
from oubliette.runtime.store.postgres.cluster import nodes
from tests.bench.flushing_postgres import flushing_server
from tests.bench.sdk_floor import processor_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).resolve().parents[2]


class ServersOnRay:
    """Nodes of a trial cluster, with a PostgreSQL that flushes its log; use it as a context.

    Args:
        count: Number of nodes.
        settings: Configuration of each, `section.key` → value.
        main: Program of the nodes.
    """

    def __init__(
        self,
        count: int,
        settings: Mapping[str, object],
        *,
        main: str = MAIN,
    ) -> None:
        # Short, since Ray makes sockets in it; others pass it, because agents may be other users.
        self.folder = Path(tempfile.mkdtemp(prefix="obb", dir="/tmp"))
        self.folder.chmod(0o711)
        self.names = trial.names_of(count)
        self.postgres = flushing_server(shared_buffers="128MB", max_connections="200")
        self.database = ""
        self.pids: dict[str, int] = {}
        self.urls: dict[str, str] = {}
        self.given: Mapping[str, str] = {}
        """Further settings of the program."""
        self._settings = settings
        self._main = main

    def __enter__(self) -> Self:
        # Otherwise a SIGTERM would leave all of it running.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            self.postgres.start()
            self.database = self.postgres.new_database()
            for name in self.names:
                self._configure(name)
            self.pids = self._start()
            with psycopg.connect(self.database, autocommit=True) as connection:
                found = nodes.all_nodes(connection)
            self.urls = {each.name: str(each.address) for each in found}
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._end()
        finally:
            self.postgres.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> dict[str, int]:
        """Start the nodes; return their processes."""
        status = trial.up(
            self.folder / "c",
            len(self.names),
            self._main,
            {"home": str(self.folder / "n"), **self.given},
            environment=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        return {each["node"]: each["pid"] for each in status["nodes"]}

    def _end(self) -> None:
        """End what was started."""
        if trial.read(self.folder / "c") is not None:
            trial.down(self.folder / "c")

    def _configure(self, name: str) -> None:
        home = self.folder / "n" / name
        home.mkdir(parents=True)
        for each in (home, home.parent):
            each.chmod(0o711)
        own = {
            "store.database": self.database,
            "server.port": 0,
            "server.on_stop": "end",
            "cluster.labels": [f"name={name}"],
            "containers.runtime": "process",
            "containers.runtime_dir": str(home / "r"),
            **self._settings,
        }
        configure(home, own, command="tests.bench")

    def processor_ms(self) -> float:
        """Processor time that the nodes and PostgreSQL have taken so far, in milliseconds."""
        postmaster = psutil.Process(self.postgres.pid)
        pids = [*self.pids.values(), *(each.pid for each in postmaster.children())]
        return sum(processor_ms(pid) for pid in pids)

    def key(self) -> str:
        """A new key of all nodes."""
        with ControlClient(self.folder / "n" / self.names[0]) as client:
            return str(client.call("token_create", {"scope": "admin", "name": "bench"})["token"])

    def query(self, sql: str, *parameters: object) -> list[Any]:
        """Rows of the database."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            return connection.execute(sql, parameters or None).fetchall()  # type: ignore[arg-type]

    def home_of(self, project_id: str) -> str:
        """Name of the node that a project is on."""
        ((node,),) = self.query("SELECT node FROM placements WHERE project_id = %s", project_id)
        return str(node)
