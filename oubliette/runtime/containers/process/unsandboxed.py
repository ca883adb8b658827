"""Plain child processes where there is no sandbox: nothing is isolated.

What a namespace does otherwise is done here as well as it can be without one: the processes of a
container are known by a variable in their environment and by who started them.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

from oubliette.runtime.containers.process import procfs

if TYPE_CHECKING:
    from oubliette.runtime.containers.base import Mount

COOKIE: Final = "OUBLIETTE_CONTAINER_ID"
"""Set for the host and, through `Inside.env`, for all that it starts."""

WARNING: Final = (
    "process.sandbox = best-effort: agents run as plain processes and can reach whatever their"
    " user can; install bubblewrap to isolate them"
)

NOBODY: Final = 65534
"""What agents run as under root when the spec names nobody."""

_SWEEPS: Final = 20


def stranger(sandbox: str) -> int | None:
    """A user who must be able to walk to what agents use: without a sandbox nothing is mounted.

    None where it is mounted, and where agents run as the server's own user.
    """
    return NOBODY if sandbox == "best-effort" and os.geteuid() == 0 else None


def places(mounts: tuple[Mount, ...], runtime_dir: str) -> dict[str, str]:
    """Where the targets of the mounts really are."""
    return {
        "/mcp": runtime_dir,
        **{mount.target.rstrip("/"): str(mount.source) for mount in mounts},
    }


def members(container_id: str, first: int | None) -> set[int]:
    """Pids of the container: those with its cookie, and all that descends from them or `first`."""
    own = os.getpid()
    parents: dict[int, int] = {}
    found: set[int] = set() if first is None else {first}
    for pid in procfs.pids():
        place = procfs.parent_and_session(pid)
        if place is None or pid == own:
            continue
        parents[pid] = place[0]
        if procfs.environment(pid).get(COOKIE) == container_id:
            found.add(pid)
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found & parents.keys()


def sweep(container_id: str, *, spare: int | None = None) -> int:
    """Kill what is left of a container and return how many that were.

    Each is stopped first, so that none can start another while the next is looked at.
    """
    killed: set[int] = set()
    for _ in range(_SWEEPS):
        left = {
            process
            for pid in members(container_id, None) - {spare}
            if (process := procfs.identify(pid)) is not None
        }
        if not left:
            break
        for process in left:
            procfs.send_signal(process, signal.SIGSTOP)
        for process in left:
            procfs.send_signal(process, signal.SIGKILL)
            killed.add(process.pid)
    return len(killed)
