"""Remains of a system on a home: processes that still run, found and ended by the home's path."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from oubliette.runtime.containers.process import procfs
from oubliette.runtime.files.home import DATABASE

if TYPE_CHECKING:
    from pathlib import Path


def processes_of(home: Path) -> list[procfs.HostProcess]:
    """Return the running processes of a home: its server, containers and agents, not this one.

    Each has the path of the home, or the id of its instance, among its arguments or variables.
    """
    marks = [str(home)]
    instance = _instance(home)
    if instance:
        marks.append(instance)
    found: list[procfs.HostProcess] = []
    for pid in procfs.pids():
        if pid == os.getpid():
            continue
        process = procfs.identify(pid)
        if process is None:
            continue
        values = (*procfs.command_line(pid), *procfs.environment(pid).values())
        if any(mark in value for mark in marks for value in values):
            found.append(process)
    return found


def described(process: procfs.HostProcess) -> str:
    """Return a process's id and the beginning of its command line."""
    return f"{process.pid} {' '.join(procfs.command_line(process.pid))[:200]}"


async def end_processes(home: Path) -> list[str]:
    """Kill the processes of a home, and wait for their ends; return their descriptions."""
    killed: list[str] = []
    while found := processes_of(home):
        killed += map(described, found)
        for process in found:
            procfs.send_signal(process, signal.SIGKILL)
        for process in found:
            await procfs.ended(process)
    return killed


def _instance(home: Path) -> str:
    file = home / DATABASE
    if not file.exists():
        return ""
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection,
    ):
        for (value,) in connection.execute("SELECT value FROM meta WHERE key = 'instance'"):
            return value.decode() if isinstance(value, bytes) else str(value)
    return ""
