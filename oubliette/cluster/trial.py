"""A trial cluster on this machine: its start, its state and its end, by a folder that owns it.

The folder has `cluster.json` with the processes that were started: the owner of Ray's processes and
the agent. They are recorded before anything is waited for, so that a start which was killed can be
ended as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.cluster.agent import AgentOrder
from oubliette.cluster.environment import GCS_FOLDER
from oubliette.cluster.local import SESSIONS
from oubliette.cluster.owned_process import OwnedProcess, launch
from oubliette.errors import AlreadyExists, NotFound, RuntimeFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

STATE_FILE: Final = "cluster.json"
START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 90.0
"""Time for the nodes to end, with the start of the process that asks them."""


class TrialState(msgspec.Struct, frozen=True):
    """A trial cluster, as its folder has it."""

    address: str
    """Of Ray's head; empty while that starts."""
    main: str
    nodes: list[str]
    owner: OwnedProcess
    agent: OwnedProcess | None = None


def up(
    folder: Path,
    nodes: int,
    main: str,
    settings: dict[str, str],
    *,
    environment: Mapping[str, str] | None = None,
    report: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Start a cluster of `nodes` nodes, named node1, node2 and so on; return its status.

    Takes up to four minutes; the processes outlive the caller. If it fails, or is interrupted,
    all of them are ended.

    Args:
        folder: for its state; a short path, since Ray makes sockets in it.
        nodes: number of nodes.
        main: program of the nodes, `package.module:function`.
        settings: for the program; no secrets, since Ray keeps them in its database.
        environment: of the processes; None: that of this one.
        report: called with each step that was done.

    Raises:
        AlreadyExists: a cluster of this folder is running.
        RuntimeFailure: it was not started; the message has the end of its log.
    """
    check_not_running(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Of the cluster before: Ray would look for its nodes, and its logs would pile up.
    for each in (GCS_FOLDER, SESSIONS):
        shutil.rmtree(folder / "ray" / each, ignore_errors=True)
    names = names_of(nodes)
    try:
        state = _start(folder, TrialState("", main, names, OwnedProcess(0, 0)), environment)
        report(f"Ray runs at {state.address}")
        order = AgentOrder(
            address=state.address,
            folder=str(folder / "ray"),
            main=main,
            nodes=names,
            settings=settings,
        )
        agent, _ = _launch(
            folder,
            "agent",
            [_encoded(order)],
            complete=_StartProgress(names, report),
            environment=environment,
            on_start=lambda agent: _write(folder, msgspec.structs.replace(state, agent=agent)),
        )
    except BaseException:
        with contextlib.suppress(NotFound):  # the first process was not even started
            down(folder)
        raise
    _write(folder, msgspec.structs.replace(state, agent=agent))
    return status(folder)


def check_not_running(folder: Path) -> None:
    """Refuse if the cluster of this folder runs.

    Raises:
        AlreadyExists: it does.
    """
    found = read(folder)
    if found is not None and found.owner.runs:
        raise AlreadyExists(f"The cluster of {folder} is running", hint="end it first (down)")


def names_of(nodes: int) -> list[str]:
    return [f"node{number}" for number in range(1, nodes + 1)]


def status(folder: Path) -> dict[str, Any]:
    """Return what of the cluster runs, and the last state of each node that the agent reported.

    Raises:
        NotFound: the folder has no cluster.
    """
    state = _found(folder)
    latest = _latest(_log(folder, "agent", "out"))
    return {
        "address": state.address,
        "running": state.owner.runs,
        "agent": state.agent is not None and state.agent.runs,
        "nodes": [latest.get(name, {"node": name, "state": "unknown"}) for name in state.nodes],
    }


def down(folder: Path, *, report: Callable[[str], object] = lambda _: None) -> bool:
    """End the cluster: the agent, the nodes in order, then Ray's processes.

    Returns:
        Whether one was running.

    Raises:
        NotFound: the folder has no cluster.
    """
    state = _found(folder)
    was_running = state.owner.runs
    if state.agent is not None:
        state.agent.end()
    if was_running and state.agent is not None:
        _end_nodes(folder, state, report)
    state.owner.end()
    if was_running:
        # Helpers of Ray's outlive it by seconds; all are of the owner's process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(state.owner.pid, signal.SIGKILL)
    (folder / STATE_FILE).unlink()
    return was_running


def read(folder: Path) -> TrialState | None:
    try:
        return msgspec.json.decode((folder / STATE_FILE).read_bytes(), type=TrialState)
    except FileNotFoundError:
        return None


# ---------------------------------------------------------------- steps
class _StartProgress:
    """Whether the output of an agent names all nodes as ready: a condition of `launch`."""

    def __init__(self, names: list[str], report: Callable[[str], object]) -> None:
        self._waiting = list(names)
        self._report = report

    def __call__(self, text: str) -> bool:
        latest = _latest_in(text)
        for name in list(self._waiting):
            told = latest.get(name, {})
            if told.get("state") == "failed":
                raise RuntimeFailure(f"{name} was not started: {told.get('error')}")
            if told.get("ready"):
                self._waiting.remove(name)
                self._report(f"{name} is ready")
        return not self._waiting


def _start(folder: Path, state: TrialState, environment: Mapping[str, str] | None) -> TrialState:
    """Start the owner of Ray's processes."""
    owner, line = _launch(
        folder,
        "local",
        [str(folder / "ray"), *state.nodes],
        complete=lambda text: text.endswith("\n"),
        environment=environment,
        on_start=lambda owner: _write(folder, msgspec.structs.replace(state, owner=owner)),
    )
    started = msgspec.structs.replace(state, owner=owner, address=json.loads(line)["address"])
    _write(folder, started)
    return started


def _end_nodes(folder: Path, state: TrialState, report: Callable[[str], object]) -> None:
    """End the nodes, each program first; Ray's end is that of the rest."""
    order = AgentOrder(
        address=state.address,
        folder=str(folder / "ray"),
        main=state.main,
        nodes=state.nodes,
        end=True,
    )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "oubliette.cluster.agent", _encoded(order)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=STOP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        report(f"the nodes did not end in {STOP_SECONDS:g} s and are killed")
        return
    ended = _latest_in(done.stdout.decode(errors="replace"))
    for name in state.nodes:
        in_time = ended.get(name, {}).get("in_time", False)
        report(f"{name} has ended" if in_time else f"{name} did not end in time and is killed")


def _encoded(order: AgentOrder) -> str:
    return msgspec.json.encode(order).decode()


def _launch(
    folder: Path,
    module: str,
    arguments: list[str],
    *,
    complete: Callable[[str], bool],
    environment: Mapping[str, str] | None,
    on_start: Callable[[OwnedProcess], object],
) -> tuple[OwnedProcess, str]:
    # -P: the folder in which the command was given must not be searched for modules.
    return launch(
        [sys.executable, "-P", "-m", f"oubliette.cluster.{module}", *arguments],
        _log(folder, module, "out"),
        _log(folder, module, "err"),
        complete=complete,
        seconds=START_SECONDS,
        env=environment,
        on_start=on_start,
    )


# ---------------------------------------------------------------- the folder
def _log(folder: Path, module: str, stream: str) -> Path:
    return folder / f"{module}.{stream}"


def _latest(log: Path) -> dict[str, dict[str, Any]]:
    try:
        return _latest_in(log.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def _latest_in(text: str) -> dict[str, dict[str, Any]]:
    """Return the last state of each node in an agent's output; an unfinished line is left out."""
    lines = text.split("\n")[:-1]
    return {state["node"]: state for state in map(json.loads, lines)}


def _found(folder: Path) -> TrialState:
    state = read(folder)
    if state is None:
        raise NotFound(f"{folder} has no cluster", hint="start one (up)")
    return state


def _write(folder: Path, state: TrialState) -> None:
    new = folder / f"{STATE_FILE}.new"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(state))
    new.rename(folder / STATE_FILE)
