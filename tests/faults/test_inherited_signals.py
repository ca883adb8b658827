"""A server and its agents work with any signals that their process has inherited."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(120)

AGAINST = """
import os, signal, sys
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
"""
"""The worst that a process can be started with: all signals are ignored, and blocked too."""
EMBEDDING = """
from oubliette import sync
with sync.open(sys.argv[1], config={"containers.runtime": "process"}) as ob:
    turn = ob.project("one", agent="scripted").run("exec git --version; kill -TERM $$\\nsay done")
    print(turn.text)
assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
"""


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("OUBLIETTE_")},
        "OUBLIETTE_CONTAINERS__RUNTIME": "process",
        "OUBLIETTE_CONTAINERS__RUNTIME_DIR": str(home / "run"),
        "OUBLIETTE_PROCESS__SANDBOX": "bubblewrap" if shutil.which("bwrap") else "best-effort",
    }


def test_a_server_that_inherits_ignored_and_blocked_signals_starts_and_is_stopped_by_sigterm(
    home: Path, environment: dict[str, str]
) -> None:
    serve = "os.execv(sys.executable, [sys.executable, '-m', 'oubliette', *sys.argv[1:]])"
    words = ["serve", "--home", str(home / "home"), "--port", "0", "-o", "json"]
    with subprocess.Popen(
        [sys.executable, "-c", AGAINST + serve, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["event"] == "ready"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.whole
def test_a_program_with_ignored_and_blocked_signals_runs_turns_and_keeps_its_own(
    home: Path, environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AGAINST + EMBEDDING, str(home / "home")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
