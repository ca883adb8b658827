"""Server of the demo: an ordinary one in a home of its own, to be killed and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.errors import OublietteError
from oubliette.runtime.containers import registry
from oubliette.runtime.containers.host_paths import temporary_folder
from oubliette.runtime.containers.process.unsandboxed import stranger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.cli.demo.lines import DemoOutput

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 15.0
ORPHAN_SECONDS: Final = 120.0  # agents of a server that could not be restarted end then
_LONGEST: Final = len("/oubliette-demo-01234567/run/oubliette-4294967294/01234567/relay.sock")


def sandbox(runtime: str) -> str:
    """The value of `process.sandbox`: the demo runs on a machine without bubblewrap too."""
    spec = registry.lookup(runtime)
    sandboxed = runtime == registry.AUTO or (spec is not None and spec.uses_sandbox)
    missing = sandboxed and shutil.which("bwrap") is None
    return "best-effort" if missing else "bubblewrap"


def new_home(runtime: str) -> Path:
    """A new folder for the demo, accessible to agents and short enough for sockets."""
    parent = temporary_folder(stranger(sandbox(runtime)), longest=_LONGEST)
    return Path(tempfile.mkdtemp(prefix="oubliette-demo-", dir=parent))


class DemoServer:
    """Server of one home, across restarts.

    Args:
        home: its folder; its log is `server.log` there.
        runtime: what runs its containers.
        environment: its configuration.
        lines: prints the waits.
    """

    def __init__(
        self, home: Path, runtime: str, environment: Mapping[str, str], lines: DemoOutput
    ) -> None:
        self.log = home / "server.log"
        self.home = home
        self._port = 0
        self._runtime = runtime
        self._lines = lines
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("OUBLIETTE_")
        } | {
            **environment,
            "OUBLIETTE_CONTAINERS__RUNTIME_DIR": str(home / "run"),
            "OUBLIETTE_SERVER__ON_STOP": "end",
            "OUBLIETTE_CONTAINERS__ORPHAN_GRACE_SECONDS": str(ORPHAN_SECONDS),
            "OUBLIETTE_PROCESS__SANDBOX": sandbox(runtime),
        }
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, port: int, **environment: str) -> str:
        """Start it on `port`, 0 for any; return its URL.

        Raises:
            OublietteError: the server ended instead; has the end of its log.
            DeadlineExceeded: the server was not ready in time.
        """
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "oubliette", "serve", "--home", str(self.home),
                "--port", str(port), "--runtime", self._runtime, "-o", "json",
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
                env={**self._environment, **environment}, start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        async with self._lines.waiting("the server's start", START_SECONDS):
            line = await self._process.stdout.readline()
        if not line:
            await self._process.wait()
            tail = self.log.read_text(encoding="utf-8", errors="replace")
            raise OublietteError(
                f"the server did not start:\n{tail[-2000:]}", hint="oubliette doctor"
            )
        url = str(json.loads(line)["url"])
        self._port = int(url.rpartition(":")[2].partition("/")[0])
        return url

    async def restart(self, **environment: str) -> float:
        """Start it again on the same port; return the seconds that this took.

        Raises what `start` does.
        """
        began = time.monotonic()
        await self.start(self._port, **environment)
        return time.monotonic() - began

    async def kill(self) -> None:
        """Kill -9."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> None:
        """End it in good order, its agents with it; no effect if it does not run."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            async with self._lines.waiting("the server's end", STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def token(self) -> str:
        """A new key with write access."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "oubliette", "token", "create", "--scope", "write",
            "--name", "demo", "--home", str(self.home), "-o", "json",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with self._lines.waiting("a key from the server", START_SECONDS):
            out, _ = await process.communicate()
        if process.returncode != 0:
            raise OublietteError("no key could be made; see above")
        return str(json.loads(out)["token"])
