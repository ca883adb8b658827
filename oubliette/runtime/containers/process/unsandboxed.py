"""Plain child processes without a sandbox: nothing is isolated.

The functions of a namespace are approximated here: the processes of a container are identified by a
variable in their environment and by their ancestors.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

from oubliette.runtime.containers.layout import NOBODY
from oubliette.runtime.containers.process import procfs

if TYPE_CHECKING:
    from oubliette.runtime.containers.base import Mount

COOKIE: Final = "OUBLIETTE_CONTAINER_ID"
"""Set for the guest and, through `Inside.env`, for all that it starts."""

WARNING: Final = (
    "process.sandbox = best-effort: agents run as plain processes and can reach whatever their"
    " user can; install bubblewrap to isolate them"
)


_SWEEPS: Final = 20


def stranger(sandbox: str) -> int | None:
    """The user that needs access to the agents' files: without a sandbox nothing is mounted.

    None if they are mounted, and if agents run as the server's own user.
    """
    return NOBODY if sandbox == "best-effort" and os.geteuid() == 0 else None


def places(mounts: tuple[Mount, ...], runtime_dir: str) -> dict[str, str]:
    """The real paths of the mounts' targets."""
    return {
        "/mcp": runtime_dir,
        **{mount.target.rstrip("/"): str(mount.source) for mount in mounts},
    }


def members(container_id: str, first: int | None) -> set[int]:
    """Return pids of the container: those with its cookie, and descendants of them or `first`."""
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
    """Kill the remaining processes of a container and return their number.

    Each is stopped first, so that none can start another while the next is examined.
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
