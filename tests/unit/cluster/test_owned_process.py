"""Processes that outlive the command which started them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from oubliette.cluster.owned_process import OwnedProcess, launch
from oubliette.errors import RuntimeFailure

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
READY = "import time; print('ready', flush=True); time.sleep(60)"
INTERRUPTED = f"""
import signal, sys
from pathlib import Path
from oubliette.cluster.owned_process import launch
folder = Path(sys.argv[1])
signal.signal(signal.SIGINT, before := getattr(signal, sys.argv[2]))
def recorded(process):
    signal.raise_signal(signal.SIGINT)
    (folder / "recorded").write_text(f"{{process.pid}} {{process.started}}")
try:
    launch([sys.executable, "-c", {READY!r}], folder / "x.out", folder / "x.err",
           complete=lambda text: "ready" in text, seconds=20, on_start=recorded)
except KeyboardInterrupt:
    sys.exit(signal.getsignal(signal.SIGINT) is not before)
sys.exit(1)
"""


def started(folder: Path, code: str, **options) -> tuple[OwnedProcess, str]:
    options = {"complete": lambda text: "ready" in text, "seconds": 20} | options
    return launch([sys.executable, "-c", code], folder / "x.out", folder / "x.err", **options)


def test_a_process_is_returned_with_its_output_once_that_is_complete(tmp_path: Path) -> None:
    process, text = started(tmp_path, READY)
    assert text == "ready\n"
    assert process.runs
    assert process.end()
    assert not process.runs
    os.waitpid(process.pid, 0)


def test_its_log_and_output_are_its_owners_alone(tmp_path: Path) -> None:
    process, _ = started(tmp_path, READY)
    process.end()
    os.waitpid(process.pid, 0)
    assert {(tmp_path / f"x.{end}").stat().st_mode & 0o777 for end in ("out", "err")} == {0o600}


def test_a_process_that_ends_instead_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match="x has ended: .*no such thing"):
        started(tmp_path, "raise SystemExit('no such thing')")


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    begun: list[OwnedProcess] = []
    with pytest.raises(RuntimeFailure, match="not ready in 0.3 s"):
        started(tmp_path, "import time; time.sleep(60)", seconds=0.3, on_start=begun.append)
    assert not begun[0].runs


def test_an_interrupt_while_it_starts_ends_it(tmp_path: Path) -> None:
    begun: list[OwnedProcess] = []

    def interrupted(_: str) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        started(tmp_path, READY, complete=interrupted, on_start=begun.append)
    assert not begun[0].runs


@pytest.mark.parametrize(
    ("handler", "ended_by"),
    [("default_int_handler", 0), ("SIG_DFL", -signal.SIGINT), ("SIG_IGN", 1)],
)
def test_an_interrupt_before_it_is_recorded_comes_after_that(
    tmp_path: Path, handler: str, ended_by: int
) -> None:
    """The recorder is interrupted in a program of its own, as the signal may end that."""
    program = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, tmp_path, handler],
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
    )
    pid, started = map(int, (tmp_path / "recorded").read_text().split())
    assert program.returncode == ended_by
    process = OwnedProcess(pid, started)
    if handler != "default_int_handler":  # nothing in the program could end it
        assert process.runs
        assert process.end()
    assert not process.runs


def test_what_it_has_started_is_ended_with_it(tmp_path: Path) -> None:
    """A start that fails leaves none of the process's own processes."""
    code = (
        "import subprocess, sys;"
        " print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid,"
        " flush=True); raise SystemExit('too bad')"
    )
    with pytest.raises(RuntimeFailure, match="too bad"):
        started(tmp_path, code, complete=lambda _: False)
    child = int((tmp_path / "x.out").read_text())
    with contextlib.suppress(ProcessLookupError):
        ended = os.pidfd_open(child)
        assert select.select([ended], [], [], 10)[0]
        os.close(ended)


def test_another_process_with_the_same_id_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        ours = OwnedProcess(other.pid, OwnedProcess.of(other.pid).started - 1)
        assert not ours.runs
        assert ours.end()
        assert other.poll() is None
        other.kill()


def test_a_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY
    process, _ = started(tmp_path, code)
    assert not process.end(seconds=0.3)
    assert not process.runs
    os.waitpid(process.pid, 0)
