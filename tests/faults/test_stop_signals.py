"""SIGTERM at any moment ends a server with exit code 0; SIGHUP ends it never."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oubliette.api.control import ControlClient

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(120)

HANDLED = "oubliette.cli.terminal.stop_signals"
"""The module whose import is the first thing of ours: the interpreter is not ours to guard."""
IMPORTS = [1, 20, 80, 160, 320]
STAGES = ["agents", "home", "runtime", "store", "containers", "front", "sessions"]


@pytest.fixture
def home() -> Iterator[Path]:
    """A home with a short path, where agents of root could pass to."""
    path = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def starting(home: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """`oubliette serve`, whose stderr tells each import and each stage once it is through."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-X", "importtime", "-m", "oubliette", "serve", "--port", "0"),
            *("--log-level", getattr(request, "param", "info")),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("OUBLIETTE_")},
            "OUBLIETTE_HOME": str(home / "home"),
            "OUBLIETTE_CONTAINERS__RUNTIME": "process",
            "OUBLIETTE_CONTAINERS__RUNTIME_DIR": str(home / "run"),
            "OUBLIETTE_PROCESS__SANDBOX": "best-effort",
        },
        start_new_session=True,
    )
    with process:
        yield process
        process.kill()


def read_to(process: subprocess.Popen[bytes], word: str) -> list[str]:
    """The lines of stderr up to the one that has this word."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line.decode())
        if word in lines[-1]:
            return lines
    raise AssertionError("".join(lines[-20:]))


def end_of(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Its exit code, and what it said at last."""
    _, said = process.communicate(timeout=30)
    return process.returncode, "".join(
        line for line in said.decode().splitlines(keepends=True) if "import time:" not in line
    )


@pytest.mark.whole
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("after", IMPORTS)
def test_a_stop_while_modules_are_imported_ends_with_0(starting, after, number, home):
    read_to(starting, HANDLED)
    assert starting.stderr is not None
    for _ in range(after):
        starting.stderr.readline()
    starting.send_signal(number)
    assert end_of(starting) == (0, "")
    assert not (home / "home" / "control.sock").exists()


@pytest.mark.whole
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("starting", ["debug"], indirect=True)
def test_a_stop_between_two_stages_of_the_start_ends_with_0(starting, stage, home):
    read_to(starting, f'"stage": "{stage}"')
    starting.send_signal(signal.SIGTERM)
    code, said = end_of(starting)
    assert code == 0, said
    assert '"level": "error"' not in said
    assert not (home / "home" / "control.sock").exists()


def test_a_second_signal_changes_nothing_of_a_stop(starting):
    """To its very end: an impatient Ctrl-C, or a manager that asks again."""
    read_to(starting, '"event": "listening"')
    starting.send_signal(signal.SIGTERM)
    read_to(starting, '"event": "stopping"')
    for number in itertools.cycle((signal.SIGTERM, signal.SIGINT)):
        starting.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            starting.wait(0.002)  # a flood would fill the pipe that wakes the loop
            break
    code, said = end_of(starting)
    assert code == 0, said
    assert "Traceback" not in said


@pytest.mark.whole
def test_a_server_whose_terminal_is_closed_goes_on(starting, home):
    """What it logs from then on is refused by the system, and lost."""
    read_to(starting, '"event": "listening"')
    assert starting.stderr is not None
    starting.stderr.close()
    starting.stderr = None
    starting.send_signal(signal.SIGHUP)
    with ControlClient(home / "home") as client:
        made = client.call("token_create", {"scope": "write", "name": "x"})  # which is logged
        assert client.call("token_list", {})["tokens"][0]["token_id"] == made["token_id"]
    starting.send_signal(signal.SIGTERM)
    assert starting.wait(30) == 0


def test_a_hangup_ends_nothing_and_is_told(starting):
    read_to(starting, HANDLED)
    assert starting.stderr is not None
    starting.stderr.readline()  # of what is imported next
    starting.send_signal(signal.SIGHUP)
    read_to(starting, '"event": "listening"')
    starting.send_signal(signal.SIGHUP)
    told = read_to(starting, "SIGHUP")[-1]
    assert "the configuration is read at the start" in told
    starting.send_signal(signal.SIGTERM)
    assert end_of(starting)[0] == 0
