"""Pykka's own tests pass on our actor type."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import requirements
from tests.unit.kit import pykka_sdist

if TYPE_CHECKING:
    from pathlib import Path

_USUAL = 50 if os.environ.get("OUBLIETTE_SOAK") else 1
RUNS = int(
    os.environ.get("OUBLIETTE_PYKKA_SUITE_RUNS")
    or max(_USUAL, 5 if "pykka-sdist" in requirements.demanded() else 1)
)
"""How often the whole suite is run, since races show only now and then: 5 times where it is
demanded (`.ci/run`), 50 times by `make soak`, else once."""

ENOUGH = 130
"""The suite of Pykka 4.4 and 4.5 has 137 tests for each runtime; far fewer were not collected."""

NOT_OURS = {
    "tests/test_threading_actor.py": "names and daemon flags of threads; our actors have none",
    "tests/test_actor.py::test_all_actors_are_stopped_on_base_exception": (
        "on purpose not: a BaseException ends the actor that raised it, not every Pykka actor of "
        "the embedding program"
    ),
    "tests/test_logging.py::test_base_exception_is_logged": (
        "checks the sentence 'Stopping all actors', which would not be true"
    ),
}
"""What is left out, and why."""

RUNTIME = """

# ---- appended by Oubliette's tests: the runtime under test
import atexit as _atexit

from oubliette.kit.pykka_future import AsyncioFuture as _Future
from oubliette.kit.loop_bridge import LoopThread as _LoopThread
from oubliette.kit.pykka_actor import AsyncioActor as _Actor

_thread = _LoopThread("pykka-suite")
_atexit.register(_thread.stop)
_Actor.bridge = _thread.bridge


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(
            Runtime(
                name="asyncio",
                actor_class=_Actor,
                event_class=threading.Event,
                future_class=_Future,
                sleep_func=time.sleep,
            ),
            id="asyncio",
        )
    ],
)
def runtime(request):
    return request.param
"""


@pytest.mark.requires("pykka-sdist")
@pytest.mark.whole
@pytest.mark.timeout(300 + 60 * RUNS)
def test_pykkas_own_tests_pass_on_our_actor_type(tmp_path: Path) -> None:
    root = pykka_sdist.unpack(tmp_path)
    conftest = root / "tests" / "conftest.py"
    conftest.write_text(conftest.read_text(encoding="utf-8") + RUNTIME, encoding="utf-8")
    # A configuration of our own: Pykka's names plugins that we do not have.
    (root / "ours.ini").write_text("[pytest]\ntimeout = 20\n", encoding="utf-8")
    # pytest-mock is Pykka's need; the others of our plugins would change what is tested.
    left_out = [f"--ignore={place}" if "::" not in place else f"--deselect={place}[asyncio]"
                for place in NOT_OURS]  # fmt: skip
    plugins = ["-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:anyio"]
    command = [sys.executable, "-m", "pytest", "-q", "-c", "ours.ini", "--rootdir", ".", *plugins]
    for run in range(1, RUNS + 1):
        done = subprocess.run(
            [*command, *left_out, "tests"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        report = f"run {run} of {RUNS}:\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
        assert done.returncode == 0, report
        passed = re.search(r"(\d+) passed", done.stdout)
        assert passed is not None and int(passed[1]) >= ENOUGH, report
        assert f"{sum('::' in place for place in NOT_OURS)} deselected" in done.stdout, report
