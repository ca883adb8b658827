"""The end of a container's process that is given up while it starts."""

from __future__ import annotations

import subprocess
import sys

from oubliette.runtime.containers.process import launch, procfs

# As bwrap does once, but all the time: it forks what would wait for it for ever.
FORKS = """
import os, signal
for number in range(1000):
    if os.fork() == 0:
        signal.pause()
    if number == 3:
        print("forking", flush=True)
signal.pause()
"""


def test_nothing_is_left_of_a_process_that_forks_while_it_is_killed() -> None:
    for _ in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", FORKS], stdout=subprocess.PIPE, start_new_session=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"forking\n"
            launch.kill_now(launch.StartedProcess(child, {}))
        session = [pid for pid in procfs.pids() if _session(pid) == child.pid]
        try:
            assert session == []
        finally:
            for pid in session:
                subprocess.run(["kill", "-9", str(pid)], check=False)


def _session(pid: int) -> int | None:
    process = procfs.identify(pid)  # none for a corpse
    place = procfs.parent_and_session(pid)
    return None if process is None or place is None else place[1]
