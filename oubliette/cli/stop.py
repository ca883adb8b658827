"""Command `oubliette stop`: ends the server of a home, in good order."""

from __future__ import annotations

import os
import signal
from typing import Final

from oubliette.cli.terminal.output import Format, Home, Output, note, print_json
from oubliette.errors import DeadlineExceeded

STOP_SECONDS: Final = 60.0


def stop(home: Home = None, output: Output = Format.text) -> None:
    """Stop the server of a home, as SIGTERM does; what becomes of agents is `server.on_stop`."""
    from oubliette.cli.client.control import ControlClient
    from oubliette.cli.lock_wait import LockWait
    from oubliette.config.loader import find_home

    place = find_home(home)
    with ControlClient(place) as client:
        pid = int(client.status()["pid"])
    os.kill(pid, signal.SIGTERM)
    with LockWait(place) as lock:  # the server has it until it has ended
        if not lock.within(STOP_SECONDS):
            raise DeadlineExceeded(
                f"the server of {place} (process {pid}) has not ended within {STOP_SECONDS:g} s",
                hint="read its log",
            )
    if output is Format.json:
        print_json({"pid": pid, "stopped": True})
        return
    note(f"The server of {place} (process {pid}) has stopped.")
