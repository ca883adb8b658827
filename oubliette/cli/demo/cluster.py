"""DemoCluster, the trial cluster of `oubliette demo --cluster`, as a server of the demo's story.

The program uses node1, which takes no projects, so that its session is on another node. That one's
process is killed, and Ray starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from oubliette.cli.demo.server import sandbox
from oubliette.errors import NotFound, OublietteError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oubliette.cli.demo.lines import DemoOutput
    from oubliette.runtime.store.postgres.cluster.cluster_view import NodeView

START_SECONDS: Final = 300.0
STOP_SECONDS: Final = 180.0
AGAIN_SECONDS: Final = 120.0  # for the process of a node to be started again, on a busy machine
GIVEN_UP_SECONDS: Final = 180.0
"""Time after which a node counts as gone; the machine of all is this one, which is not lost."""
FRONT: Final = "node1"
"""Node that serves the program."""
_LOOK_SECONDS: Final = 0.25


class DemoCluster:
    """A trial cluster in a folder of its own, with the methods of `DemoServer`.

    Args:
        home: its folder.
        runtime: what runs the containers.
        environment: configuration of the nodes.
        nodes: number of them.
        lines: prints what happens.
    """

    def __init__(
        self,
        home: Path,
        runtime: str,
        environment: Mapping[str, str],
        nodes: int,
        lines: DemoOutput,
    ) -> None:
        self.home = home
        self.log = home / "agent.err"
        self.nodes = nodes
        self.front = FRONT
        self.killed = ""
        """Name of the node whose process was killed."""
        self._lines = lines
        self.environment: dict[str, str] = {
            name: value for name, value in os.environ.items() if not name.startswith("OUBLIETTE_")
        } | {
            **environment,
            "OUBLIETTE_CONTAINERS__RUNTIME": runtime,
            "OUBLIETTE_CONTAINERS__ORPHAN_GRACE_SECONDS": str(GIVEN_UP_SECONDS),
            "OUBLIETTE_CLUSTER__MACHINE_LOST_SECONDS": str(GIVEN_UP_SECONDS),
            "OUBLIETTE_PROCESS__SANDBOX": sandbox(runtime),
        }
        """Variables of the nodes' processes."""
        self._token = ""
        self._epoch = 0

    async def start(self, port: int, **environment: str) -> str:
        """Start all, node1 on `port` or any; return the URL of node1.

        Raises:
            OublietteError: it was not started; the reason is above.
            DeadlineExceeded: it was not ready in time.
        """
        self.environment |= environment
        self._lines.say(
            "demo",
            f"starts PostgreSQL, Ray and {self.nodes} nodes on this machine; that takes up to a"
            " minute",
        )
        words = ["up", "--local", "--nodes", str(self.nodes), "--port", str(port), "-o", "json"]
        async with self._lines.waiting("the cluster's start", START_SECONDS):
            made = json.loads(await self._command(*words))
        for name, url in made["nodes"].items():
            self._lines.say("demo", f"{name} serves at {url}")
        self._token = made["token"]
        await self._command("drain", FRONT)
        self._lines.say(
            "demo", f"{FRONT} takes no projects from now on; it serves this program all the same"
        )
        return str(made["nodes"][FRONT])

    async def token(self) -> str:
        """The key with write access that was made at the start."""
        return self._token

    async def kill(self) -> None:
        """Kill -9 the process of the node that the session is on."""
        from oubliette.cluster import trial

        home = next((each for each in await self._nodes() if each.live_sessions), None)
        if home is None:
            raise OublietteError("no node has the session")
        self.killed, self._epoch = home.node.name, home.node.epoch
        states = trial.status(self.home)["nodes"]
        pid = next(int(each["pid"]) for each in states if each["node"] == self.killed)
        self._lines.say(
            "demo", f"the session is on {self.killed}; its process {pid} is killed with -9"
        )
        os.kill(pid, signal.SIGKILL)

    async def restart(self, **_: str) -> float:
        """Wait until Ray has started that process again; return the seconds that this took.

        Raises:
            DeadlineExceeded: it does not serve again in time.
        """
        began = time.monotonic()
        async with self._lines.waiting(f"Ray to start {self.killed} again", AGAIN_SECONDS):
            # Its row in the database gives no notice.
            while not self._serves_again(await self._nodes()):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)
        return time.monotonic() - began

    async def stop(self) -> None:
        """End the cluster with all its processes; no effect if it does not run."""
        with contextlib.suppress(NotFound):
            async with self._lines.waiting("the cluster's end", STOP_SECONDS):
                await self._command("down")

    def _serves_again(self, nodes: list[NodeView]) -> bool:
        return any(
            each.node.name == self.killed
            and each.node.epoch > self._epoch
            and each.node.address
            and each.node.lease_seconds > 0
            for each in nodes
        )

    async def _nodes(self) -> list[NodeView]:
        from oubliette.cluster import trial_servers
        from oubliette.runtime.store.postgres.cluster.cluster_view import cluster_view

        url = trial_servers.database_of_cluster(self.home)
        return list((await asyncio.to_thread(cluster_view, url)).nodes)

    async def _command(self, verb: str, *words: str) -> bytes:
        """Run `oubliette cluster …`; interrupt it, and wait for its end, if this is cancelled."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "oubliette", "cluster", verb, *words, "--folder", str(self.home),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            out, errors = await process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            await process.wait()
            raise
        if process.returncode:
            raise _refused(process.returncode, errors.decode(errors="replace").strip())
        return out


def _refused(code: int, text: str) -> OublietteError:
    """The error that a command has printed, as JSON or text."""
    said: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        said = json.loads(text.splitlines()[-1])["error"] if text else {}
    message = said.get("message") or text or f"the command failed with exit code {code}"
    kind = NotFound if code == NotFound.exit_code else Unavailable
    return kind(message, hint=said.get("hint"))
