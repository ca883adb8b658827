"""Servers of the fork server end with the suite that started them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("waits for processes by pidfd", allow_module_level=True)

SUITE = """
import os, sys
from pathlib import Path
from oubliette.testing.fork_server import Zygote

home = sys.argv[1]
with Zygote() as zygote:
    out = os.open(os.devnull, os.O_RDWR)
    environment = {**os.environ, "OUBLIETTE_CONTAINERS__RUNTIME": "process"}
    arguments = ["serve", "--home", home, "--port", "0"]
    pid, link = zygote.start(arguments, environment, stdin=out, stdout=out, stderr=out)
    print(pid, flush=True)
    link.recv(1)
"""


@pytest.mark.whole
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_group_of_the_suite_leaves_no_server(
    tmp_path: Path, number: signal.Signals
) -> None:
    suite = subprocess.Popen(
        [sys.executable, "-c", SUITE, str(tmp_path / "home")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert suite.stdout is not None
    server = os.pidfd_open(int(suite.stdout.readline()))
    try:
        os.killpg(suite.pid, number)
        assert suite.wait(20)
        assert wait_end(server, 20), "the server outlived the suite"
    finally:
        os.close(server)
        suite.stdout.close()


def wait_end(pidfd: int, seconds: float) -> bool:
    """Return whether the process ends in time: its descriptor is readable then."""
    return bool(select.select([pidfd], [], [], seconds)[0])
