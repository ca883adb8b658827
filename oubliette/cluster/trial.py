"""A trial cluster on this machine: its start, its state and its end, by a folder that owns it.

The folder (mode 0700) has `cluster.json` with the processes that were started: the owner of Ray's
processes and the agent. A process is known by its id and the time of its start, so that another one
which has got the same id is never ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from oubliette.errors import AlreadyExists, NotFound, RuntimeFailure

STATE_FILE: Final = "cluster.json"
START_SECONDS: Final = 120.0
END_SECONDS: Final = 60.0


class OwnedProcess(msgspec.Struct, frozen=True):
    """A process that was started for the cluster."""

    pid: int
    started: int
    """Time of its start, in the kernel's ticks since it booted."""


class TrialState(msgspec.Struct, frozen=True):
    """A trial cluster, as its folder has it."""

    address: str
    nodes: list[str]
    owner: OwnedProcess
    agent: OwnedProcess | None = None


def up(folder: Path, nodes: int, main: str, settings: dict[str, str]) -> dict[str, Any]:
    """Start a cluster of `nodes` nodes, named node1, node2 and so on; return its status.

    Takes up to two minutes; the processes outlive the caller.

    Args:
        folder: for its state; a short path, since Ray makes sockets in it.
        nodes: number of nodes.
        main: program of the nodes, `package.module:function`.
        settings: for the program.

    Raises:
        AlreadyExists: a cluster of this folder is running.
        RuntimeFailure: it was not started; the message has the end of its log.
    """
    found = _read(folder)
    if found is not None and _runs(found.owner):
        raise AlreadyExists(f"The cluster of {folder} is running", hint="end it first (down)")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = [f"node{number}" for number in range(1, nodes + 1)]
    owner, line = _launch(folder, "local", [str(folder / "ray"), *names])
    state = TrialState(json.loads(line)["address"], names, owner)
    _write(folder, state)
    order = {
        "address": state.address,
        "folder": str(folder / "ray"),
        "main": main,
        "nodes": names,
        "settings": settings,
    }
    agent, _ = _launch(folder, "agent", [json.dumps(order)], lines=nodes)
    _write(folder, msgspec.structs.replace(state, agent=agent))
    return status(folder)


def status(folder: Path) -> dict[str, Any]:
    """Return what of the cluster runs, and the last state of each node that the agent reported.

    Raises:
        NotFound: the folder has no cluster.
    """
    state = _read(folder)
    if state is None:
        raise NotFound(f"{folder} has no cluster", hint="start one (up)")
    latest: dict[str, Any] = {}
    for line in _log(folder, "agent", "out").read_text(encoding="utf-8").splitlines():
        told = json.loads(line)
        latest[told["node"]] = told
    return {
        "address": state.address,
        "running": _runs(state.owner),
        "agent": state.agent is not None and _runs(state.agent),
        "nodes": [latest.get(name, {"node": name, "state": "unknown"}) for name in state.nodes],
    }


def down(folder: Path) -> bool:
    """End the cluster with all its processes; False: none was running.

    Raises:
        NotFound: the folder has no cluster.
    """
    state = _read(folder)
    if state is None:
        raise NotFound(f"{folder} has no cluster", hint="start one (up)")
    was_running = _runs(state.owner)
    for each in (state.agent, state.owner):
        if each is not None:
            _end(each)
    (folder / STATE_FILE).unlink()
    return was_running


# ---------------------------------------------------------------- processes
def _launch(
    folder: Path, module: str, arguments: list[str], lines: int = 1
) -> tuple[OwnedProcess, str]:
    """Start a process that outlives this one; return it once it has written so many lines."""
    out = _log(folder, module, "out")
    with out.open("wb") as output, _log(folder, module, "err").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", f"oubliette.cluster.{module}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    # Files have no notice of what is appended; the process itself has one of its end.
    ended = os.pidfd_open(process.pid)
    try:
        for _ in range(int(START_SECONDS * 10)):
            text = out.read_text(encoding="utf-8")
            if text.count("\n") >= lines:
                return OwnedProcess(process.pid, _start_time(process.pid)), text
            if select.select([ended], [], [], 0.1)[0]:
                break
    finally:
        os.close(ended)
    process.kill()
    process.wait(END_SECONDS)
    last = _log(folder, module, "err").read_text(encoding="utf-8")[-1000:]
    raise RuntimeFailure(f"The cluster's {module} process was not started: {last}")


def _end(process: OwnedProcess) -> None:
    """Ask a process to end, and kill it with its group if it does not in a minute."""
    if not _runs(process):
        return
    try:
        watched = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(watched, signal.SIGTERM)
        if not select.select([watched], [], [], END_SECONDS)[0]:
            os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(watched)


def _runs(process: OwnedProcess) -> bool:
    return _start_time(process.pid) == process.started


def _start_time(pid: int) -> int:
    """Return the time of a process's start, 0 where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in {"Z", "X"} else int(fields[19])


# ---------------------------------------------------------------- the folder
def _log(folder: Path, module: str, stream: str) -> Path:
    return folder / f"{module}.{stream}"


def _read(folder: Path) -> TrialState | None:
    try:
        return msgspec.json.decode((folder / STATE_FILE).read_bytes(), type=TrialState)
    except FileNotFoundError:
        return None


def _write(folder: Path, state: TrialState) -> None:
    new = folder / f"{STATE_FILE}.new"
    new.write_bytes(msgspec.json.encode(state))
    new.rename(folder / STATE_FILE)
