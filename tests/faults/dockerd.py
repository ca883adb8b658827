"""A docker daemon of a test's own, to be stopped and killed at will: no other is touched."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from oubliette.runtime.containers.docker.client import Engine
from oubliette.runtime.containers.process import procfs

START = 40.0  # seconds
STOP = 40.0


def lacking() -> str | None:
    """Why there can be no daemon here; None if there can."""
    if os.geteuid() != 0:
        return "a docker daemon of one's own needs root"
    return None if shutil.which("dockerd") else "dockerd is not on PATH"


class Dockerd:
    """One daemon: its own data, its own containerd, its own socket, no network.

    Args:
        live_restore: containers outlive the daemon, and are taken over by the next.
    """

    def __init__(self, *, live_restore: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="obd", dir="/tmp"))
        self.host = f"unix://{self.folder}/docker.sock"
        self._live_restore = live_restore
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the daemon that runs."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it, again on the same data, and wait until it answers.

        Raises:
            RuntimeError: it ended instead; with the end of its log.
        """
        folder = self.folder
        options = {
            "data-root": folder / "data",
            "exec-root": folder / "exec",
            "pidfile": folder / "pid",
            "host": self.host,
            "config-file": "/dev/null",
            "bridge": "none",
            "iptables": "false",
            "ip6tables": "false",
            "live-restore": str(self._live_restore).lower(),
            "shutdown-timeout": "3",
        }
        (folder / "pid").unlink(missing_ok=True)
        empty = folder / "empty.json"
        empty.write_text("{}")
        options["config-file"] = empty
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                # In a network namespace of its own: with `bridge=none` a daemon removes `docker0` at
                # its start, and that would be the one of the machine's daemon.
                [
                    *("unshare", "--net", "--", "dockerd"),
                    *(f"--{name}={value}" for name, value in options.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        async with asyncio.timeout(START):
            while not await asyncio.to_thread(self._answers):
                if self._process.poll() is not None:
                    text = (folder / "log").read_text(errors="replace")
                    raise RuntimeError(f"dockerd ended: {text[-3000:]}")
                await asyncio.sleep(0.1)

    def _answers(self) -> bool:
        try:
            Engine("docker", self.host).connect(timeout=5).close()
        except Exception:
            return False
        return True

    async def stop(self, number: int = signal.SIGTERM) -> None:
        """End it, politely or not; without live-restore its containers end with it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        known = procfs.identify(process.pid)
        if known is not None:
            async with asyncio.timeout(STOP):
                await procfs.ended(known)
        process.wait()
        if number == signal.SIGKILL:
            await self._end_containerd()  # it hangs when nobody reads what it logs

    async def aclose(self) -> None:
        """End it and all that it has started, and remove its data."""
        if self._process is not None and self._process.poll() is None:
            await asyncio.to_thread(self._remove_all)
        await self.stop()
        await self._end_containerd()
        for pid in procfs.pids():
            if str(self.folder) in " ".join(procfs.command_line(pid)):  # a shim
                for other in procfs.pids():
                    place = procfs.parent_and_session(other)
                    if place is not None and place[0] == pid:
                        os.kill(other, signal.SIGKILL)
                await self._end(pid)
        await asyncio.to_thread(self._clear)

    async def _end_containerd(self) -> None:
        for path in self.folder.rglob("containerd.pid"):
            await self._end(int(path.read_text() or 0))
            path.unlink()  # nobody may reap it, and dockerd takes a dead one for a living

    def _remove_all(self) -> None:
        api: Any = Engine("docker", self.host).connect(timeout=20)
        for each in api.containers(all=True):
            api.remove_container(each["Id"], force=True)
        api.close()

    async def _end(self, pid: int) -> None:
        known = procfs.identify(pid) if pid else None
        if known is not None and str(self.folder) in " ".join(procfs.command_line(pid)):
            procfs.send_signal(known, signal.SIGKILL)
            async with asyncio.timeout(STOP):
                await procfs.ended(known)

    def _clear(self) -> None:
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(str(self.folder))), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)
