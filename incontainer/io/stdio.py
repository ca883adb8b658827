"""Standard streams of the programs that an agent starts: protocol on stdio, log on stderr."""

from __future__ import annotations

import os
import select


def log(message: str) -> None:
    """Write one line to the agent's log; a full pipe drops it instead of blocking."""
    line = f"oubliette-client: {' '.join(message.split())}"[:1000]
    writable = select.poll()
    writable.register(2, select.POLLOUT)
    if writable.poll(0):
        try:
            os.write(2, line.encode("utf-8", "backslashreplace") + b"\n")
        except OSError:
            pass


def take_stdio() -> tuple[int, int]:
    """Return copies of stdin and stdout; other readers and writers get /dev/null and stderr."""
    stdin, stdout = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return stdin, stdout
