"""Programs that are killed at a moment and started again on the same home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oubliette.errors import InvalidParameter
from oubliette.testing.crash import AfterOutput, CrashRunner, ProgramFailed
from oubliette.testing.remains import processes_of

COUNT = """
import os, pathlib, sys
from oubliette.failpoints import failpoint
file = pathlib.Path(os.environ["OUBLIETTE_HOME"]) / "count"
for number in range(int(file.read_text()) if file.exists() else 0, 5):
    failpoint("session.committed")
    file.write_text(str(number + 1))
    print("did", number)
print("done", *sys.argv[1:])
"""

WAIT = """
import os, sys, time, pathlib
file = pathlib.Path(os.environ["OUBLIETTE_HOME"]) / "was"
if file.exists():
    print("again"); sys.exit()
file.touch()
print("waiting")
time.sleep(600)
"""


@pytest.fixture
def crash():
    with CrashRunner(seed=7) as runner:
        yield runner
    assert not runner.home.exists()


def script(folder: Path, text: str) -> Path:
    file = folder / "program.py"
    file.write_text(text)
    return file


def test_a_program_is_killed_at_a_failpoint_and_goes_on_where_it_was(crash, tmp_path) -> None:
    outcome = crash.run(script(tmp_path, COUNT), "well", at="session.committed@3")
    first, last = outcome.runs
    assert (first.killed, first.lines) == (True, ["did 0", "did 1"])
    assert (last.exit_code, last.lines) == (0, ["did 2", "did 3", "did 4", "done well"])
    assert outcome.output.count("did") == 5


def test_several_moments_are_one_kill_each(crash, tmp_path) -> None:
    outcome = crash.run(script(tmp_path, COUNT), at=["session.committed@2", "session.committed@3"])
    assert [run.killed for run in outcome.runs] == [True, True, False]
    assert outcome.last.lines == ["did 3", "did 4", "done"]


def test_a_program_is_killed_when_it_has_printed_a_line(crash, tmp_path) -> None:
    outcome = crash.run(script(tmp_path, WAIT), at=AfterOutput("wait"))
    assert outcome.output.split() == ["waiting", "again"]


def test_a_program_is_killed_after_seconds(crash, tmp_path) -> None:
    run = crash.start(script(tmp_path, "import time; time.sleep(600)"), at=crash.moment(0.01, 0.1))
    assert run.killed
    assert run.seconds < 30


def test_random_moments_are_those_of_the_seed(crash) -> None:
    with CrashRunner(seed=7) as other:
        assert other.moment() == crash.moment()


def test_a_program_that_ends_before_its_moment_is_an_error_with_its_output(crash, tmp_path) -> None:
    with pytest.raises(ProgramFailed, match=r"ended with 3 before it was to be killed(.|\n)*why"):
        crash.run(script(tmp_path, "import sys; print('why'); sys.exit(3)"), at="test.never")


def test_a_last_run_that_fails_is_an_error(crash, tmp_path) -> None:
    text = WAIT.replace("sys.exit()", "raise ValueError('twice')")
    with pytest.raises(ProgramFailed, match=r"last run ended with 1(.|\n)*twice"):
        crash.run(script(tmp_path, text), at=AfterOutput("waiting"))


def test_a_program_that_hangs_is_killed_and_an_error(crash, tmp_path) -> None:
    with pytest.raises(ProgramFailed, match=r"did not end within 0.5 s"):
        crash.start(script(tmp_path, "import time; time.sleep(600)"), timeout=0.5)


def program() -> None:
    print("called in", os.environ["OUBLIETTE_HOME"])


def test_functions_are_programs_too(crash) -> None:
    assert crash.start(program).lines == [f"called in {crash.home}"]
    assert crash.start("platform:platform").exit_code == 1  # a result is an exit code


@pytest.mark.parametrize("wrong", ["nowhere.py", "no_module:f", lambda: None])
def test_what_cannot_be_run_is_refused(crash, wrong) -> None:
    with pytest.raises(InvalidParameter, match="program: "):
        crash.start(wrong)
    with pytest.raises(InvalidParameter, match="at: "):
        crash.start(program, at="a=b")


def test_processes_that_a_killed_program_left_are_ended(tmp_path) -> None:
    text = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("started", flush=True)
time.sleep(600)
"""
    with CrashRunner() as crash:
        assert crash.start(script(tmp_path, text), at=AfterOutput("started")).killed
        assert len(processes_of(crash.home)) == 1
    assert processes_of(crash.home) == []
