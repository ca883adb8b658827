"""Processes of this machine from `/proc`, identified safely against reused pids.

A pid alone is ambiguous: it may have been given to another process. With the boot id and the start
time (clock ticks since boot) it is unique.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from pathlib import Path
from typing import Final

import msgspec

PROC: Final = Path("/proc")


class HostProcess(msgspec.Struct, frozen=True):
    """Unique identity of one process."""

    pid: int
    start_time: int
    """Clock ticks after boot (field 22 of `/proc/<pid>/stat`, proc(5))."""
    boot: str
    """`/proc/sys/kernel/random/boot_id`: another boot, other processes."""


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name is in parentheses and may hold anything, parentheses and newlines included.
    return text[text.rindex(b")") + 2 :].decode("ascii").split(" ")


def identify(pid: int) -> HostProcess | None:
    """Return the process that has `pid` now; None if there is none, or only a zombie."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] in {"Z", "X"}:
        return None
    return HostProcess(pid, int(fields[19]), boot_id())


def is_alive(process: HostProcess) -> bool:
    """Whether this very process still runs and is no zombie."""
    return identify(process.pid) == process


def parent_and_session(pid: int) -> tuple[int, int] | None:
    fields = _stat_fields(pid)
    return None if fields is None else (int(fields[1]), int(fields[3]))


def children(pid: int) -> list[int]:
    """Return pids of the processes whose parent is `pid` now."""
    return [
        other
        for other in pids()
        if (place := parent_and_session(other)) is not None and place[0] == pid
    ]


def command_line(pid: int) -> list[str]:
    """Return the arguments of `pid`; empty for kernel threads, zombies and ended processes."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(part) for part in raw.split(b"\0")[:-1]]


def environment(pid: int) -> dict[str, str]:
    """Return the initial environment of `pid`; empty where access is denied."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (os.fsdecode(part).partition("=") for part in raw.split(b"\0") if part)
    return {name: value for name, _, value in pairs}


class Status(msgspec.Struct, frozen=True):
    """Lines of `/proc/<pid>/status` that decisions depend on."""

    uid: int
    """Real user id."""
    ns_pids: tuple[int, ...]
    """The pid in each pid namespace, from ours inwards."""


def status(pid: int) -> Status | None:
    """Return the user of `pid`, and its pids in the namespaces below ours."""
    try:
        text = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    uid = int(rows["Uid"].split()[0])
    return Status(uid, tuple(int(part) for part in rows.get("NSpid", str(pid)).split()))


def pids() -> list[int]:
    return sorted(int(entry) for entry in os.listdir(PROC) if entry.isdigit())  # noqa: PTH208


def labels_of(arguments: list[str]) -> dict[str, str]:
    """Return the `--label K=V` pairs of a command line; the last of a name counts."""
    found: dict[str, str] = {}
    for option, value in itertools.pairwise(arguments):
        if option == "--label":
            name, _, text = value.partition("=")
            found[name] = text
    return found


def open_process(process: HostProcess) -> int | None:
    """Return a pidfd of this very process (pidfd_open(2)), for the caller to close, or None."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    # The descriptor pins the pid from here on: the process seen now is the one waited for.
    if identify(process.pid) != process:
        os.close(fd)
        return None
    return fd


def send_signal(process: HostProcess, number: int) -> bool:
    """Send a signal to this very process; False if it has ended, or is not ours to signal."""
    fd = open_process(process)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True


class Watch:
    """Waiter for the end of one process, ours or not: a descriptor, no thread, no polling.

    Raises:
        OSError: the limit of descriptors is reached.
    """

    def __init__(self, process: HostProcess) -> None:
        self._fd = open_process(process)

    async def over(self) -> None:
        """Wait until it has ended; one waiter at a time."""
        if self._fd is None:
            return
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def readable() -> None:
            if not over.done():
                over.set_result(None)

        loop.add_reader(self._fd, readable)
        try:
            await over
        finally:
            loop.remove_reader(self._fd)

    def close(self) -> None:
        """Close the descriptor; a second call has no effect."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


async def ended(process: HostProcess) -> None:
    """Wait until this very process has ended."""
    watch = Watch(process)
    try:
        await watch.over()
    finally:
        watch.close()
