"""Failpoints: named places at which a test can make the process fail.

A failpoint does nothing unless `OUBLIETTE_FAILPOINTS` names it: `name=action[@N]`, separated by
commas. Actions: `kill` (SIGKILL to this process), `raise` (a `FailpointError`), `enospc` (an
`OSError`). `@N` fires at the N-th pass only (from 1). The variable is read once, at import.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import Final

VARIABLE: Final = "OUBLIETTE_FAILPOINTS"
"""Environment variable with the failpoints of a process."""


class FailpointError(RuntimeError):
    """Error of a failpoint whose action is `raise`."""


class _Failpoint:
    def __init__(self, action: str, at: int) -> None:
        self.action = action
        self.at = at
        self.passes = 0

    def hit(self, name: str) -> None:
        self.passes += 1
        if self.at and self.passes != self.at:
            return
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "enospc":
            raise OSError(errno.ENOSPC, "No space left on device (failpoint)")
        else:
            raise FailpointError(f"failpoint {name}")


def _parse(text: str) -> dict[str, _Failpoint]:
    table: dict[str, _Failpoint] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = item.partition("=")
        action, _, at = action.partition("@")
        if action not in {"kill", "raise", "enospc"} or (at and not at.isdigit()):
            raise ValueError(f"{VARIABLE}: {item!r} is not name=kill|raise|enospc[@N]")
        table[name] = _Failpoint(action, int(at or 0))
    return table


_active = _parse(os.environ.get(VARIABLE, ""))


def activate(text: str) -> None:
    """Replace the active failpoints by those of `text` (tests in the same process)."""
    global _active
    _active = _parse(text)


def failpoint(name: str) -> None:
    """Fail here if a test asked for it; otherwise it costs one dictionary look-up."""
    if _active and (point := _active.get(name)) is not None:
        point.hit(name)
