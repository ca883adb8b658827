"""The plugin of pytest, as a project that installs Oubliette has it: its tests run by pytest."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oubliette.testing.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.whole, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "pytest_example"
INSTALLED = any(each.value == "oubliette.testing.plugin" for each in entry_points(group="pytest11"))
LOAD = [] if INSTALLED else ["-p", "oubliette.testing.plugin"]


class Project:
    """A folder with tests that turn every warning into an error.

    It is not pytest's own `pytester`: when a test ends, that takes back every import that was made
    meanwhile in this process. What is written in C then exists twice (httptools raised errors that
    nobody could catch), and a later test on this worker fails for it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, text: str, *options: str) -> pytest.RunResult:
        """Run one module of tests in a process of its own."""
        self.path.joinpath("test_it.py").write_text(text)
        return run_pytest(self.path, "-p", "no:randomly", *options)


def run_pytest(folder: Path, *options: str) -> pytest.RunResult:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *LOAD, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    print(done.stdout, done.stderr, sep="\n")
    seconds = time.monotonic() - began
    return pytest.RunResult(
        done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), seconds
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    folder.joinpath("pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\nanyio_mode = auto\n"
    )
    folder.joinpath("conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef anyio_backend(): return 'asyncio'\n"
    )
    return Project(folder)


TOOLS = """
import asyncio, os, threading
import pytest

def double(x: int) -> dict:
    '''Double it.'''
    return {"x": 2 * x}
"""


def test_a_test_that_awaits_has_a_system_of_its_own_with_its_tools(project) -> None:
    result = project.run(
        TOOLS
        + """
@pytest.mark.parametrize("x", [1, 2])
async def test_it(oubliette_project_async, x):
    async with oubliette_project_async as project:
        result = await project.run(f'call double {{"x": {x}}}', tools=[double])
    assert result.tool_calls[0].result == {"x": 2 * x}
""",
    )
    result.assert_outcomes(passed=2)


def test_a_script_stands_for_the_model_and_is_used_to_its_end(project) -> None:
    result = project.run(
        TOOLS
        + """
async def test_used(oubliette_project_async, agent):
    agent.script('call double {"x": 4}', "say it is eight")
    async with oubliette_project_async as project:
        result = await project.run("What is twice four?", tools=[double])
    assert (result.text, result.tool_calls[0].result) == ("it is eight", {"x": 8})
    assert agent.prompts[0].startswith("What is twice four?")

async def test_unused(oubliette_project_async, agent):
    agent.script("say hello")
    agent.script("say never")
    async with oubliette_project_async as project:
        await project.run("Greet.")

async def test_too_few(oubliette_project_async, agent):
    agent.script("say hello")
    async with oubliette_project_async as project:
        await project.run("Greet.")
        with pytest.raises(Exception, match="no script for this turn"):
            await project.run("And?")

async def test_failed_says_it_once(oubliette_project_async, agent):
    agent.script("say hello")
    assert 1 == 2
""",
    )
    result.assert_outcomes(passed=3, failed=1, errors=2)
    result.stdout.fnmatch_lines(["*no turn has begun with this script:*", "*say never*"])
    result.stdout.fnmatch_lines(["*got a prompt after its 1 scripts were used:*", "*And?*"])


def test_a_clock_that_is_moved_ahead_passes_deadlines(project) -> None:
    result = project.run(
        TOOLS
        + """
async def test_it(oubliette_project_async, clock):
    began = asyncio.Event()
    async def slow(x: int) -> dict:
        '''Take for ever.'''
        began.set()
        await asyncio.Event().wait()
    async with oubliette_project_async as project:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(project.run('call slow {"x": 1}', tools=[slow]))
            await asyncio.wait_for(began.wait(), 20)
            await clock.skip(100)
    call = running.result().tool_calls[0]
    assert call.is_error
""",
    )
    result.assert_outcomes(passed=1)


def test_a_blocking_test_moves_the_clock_ahead_while_a_turn_runs(project) -> None:
    result = project.run(
        TOOLS
        + """
def test_it(oubliette_project, clock):
    began, done = threading.Event(), threading.Event()
    def slow(x: int) -> dict:
        'Take until the test ends.'
        began.set()
        done.wait(60)
        return {}
    session = oubliette_project.spawn('call slow {"x": 1}', tools=[slow])
    try:
        assert began.wait(20)
        clock.skip_blocking(100)
        call = session.turn.result(20).tool_calls[0]
    finally:
        done.set()
    assert call.is_error
""",
    )
    result.assert_outcomes(passed=1)


def test_settings_of_the_system_are_a_fixture_to_override(project) -> None:
    result = project.run(
        TOOLS
        + """
@pytest.fixture
def oubliette_settings():
    return {"sessions.max_live_per_project": 1}

async def test_it(oubliette_project_async):
    async with oubliette_project_async as project:
        await project.spawn("sleep 100")
        with pytest.raises(Exception, match="1"):
            await project.spawn("say hello")
""",
    )
    result.assert_outcomes(passed=1)


def test_a_test_that_leaves_a_thread_or_a_task_fails(project) -> None:
    result = project.run(
        TOOLS
        + """
async def test_task(oubliette_project_async):
    task = None
    with pytest.raises(AssertionError, match="the task left over"):
        async with oubliette_project_async as project:
            task = asyncio.create_task(asyncio.sleep(100), name="left over")
    task.cancel()

async def test_thread(oubliette_project_async):
    done = threading.Event()
    with pytest.raises(AssertionError, match="the thread left over"):
        async with oubliette_project_async as project:
            threading.Thread(target=done.wait, name="left over").start()
    done.set()
""",
    )
    result.assert_outcomes(passed=2)


MODEL = (
    TOOLS
    + """
import httpx2

def ask(url, prompt):
    body = {"model": "scripted", "messages": [{"role": "user", "content": prompt}],
            "tools": [{"type": "function", "function": {"name": "echo"}}]}
    return httpx2.post(f"{url}/chat/completions", json=body, headers={"authorization": "Bearer k"})
"""
)


def test_a_blocking_test_has_a_scripted_model(project) -> None:
    result = project.run(
        MODEL
        + """
def test_it(model):
    assert ask(model.url, "say hello").json()["choices"][0]["message"]["content"] == "hello"
    assert model.requests[-1].key == "k"
""",
    )
    result.assert_outcomes(passed=1)


CASSETTE = (
    MODEL
    + """
def test_it(cassette):
    assert ask(cassette.url, "say hello").json()["choices"][0]["message"]["content"] == "hello"
"""
)


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    from oubliette.testing.loop_thread import on_loop_thread

    with on_loop_thread(ModelServer()) as model:
        monkeypatch.setenv("OUBLIETTE_UPSTREAM_URL", model.url)
        monkeypatch.setenv("OUBLIETTE_UPSTREAM_KEY", "the-real-key")
        yield model


def test_a_cassette_is_recorded_once_and_replayed_then(project, upstream, monkeypatch) -> None:
    project.run(CASSETTE, "--oubliette-record=once").assert_outcomes(passed=1)
    assert [each.key for each in upstream.requests] == ["the-real-key"]
    (file,) = project.path.glob("cassettes/*/test_it.jsonl")
    assert "the-real-key" not in file.read_text()
    monkeypatch.delenv("OUBLIETTE_UPSTREAM_URL")
    project.run(CASSETTE).assert_outcomes(passed=1)
    project.run(CASSETTE, "--oubliette-record=once").assert_outcomes(passed=1)
    assert len(upstream.requests) == 1


def test_without_a_cassette_a_test_fails_and_says_how_to_record_it(project) -> None:
    text = MODEL + "def test_it(cassette): assert ask(cassette.url, 'say hello').is_error\n"
    result = project.run(text)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*was not recorded: there is no *--oubliette-record=once*"])
    result = project.run(text, "--oubliette-record=all")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*OUBLIETTE_UPSTREAM_URL*"])


PROGRAM = """
import asyncio
import oubliette

async def main():
    async with oubliette.open(config={"agents.default": "scripted"}, on_exit="keep") as ob:
        project = await ob.project("shop")
        session = await project.spawn("say ready", idempotency_key="one")
        await session.turn
        print("ready", session.id, flush=True)
        await session.end()

asyncio.run(main())
"""


def test_a_program_that_is_killed_goes_on_in_its_next_run(project) -> None:
    project.path.joinpath("program.py").write_text(PROGRAM)
    result = project.run(
        """
def test_it(crash):
    outcome = crash.run("program.py", at="session.committed@2")
    assert outcome.runs[0].killed
    assert outcome.last.output.count("ready") == 1
""",
    )
    result.assert_outcomes(passed=1)


def test_a_test_that_blocks_has_a_system_of_its_own_with_its_tools(project) -> None:
    result = project.run(
        TOOLS
        + """
def test_it(oubliette_project, agent):
    agent.script('call double {"x": 4}', "say it is eight")
    result = oubliette_project.run("What is twice four?", tools=[double])
    assert (result.text, result.tool_calls[0].result) == ("it is eight", {"x": 8})
""",
    )
    result.assert_outcomes(passed=1)


def test_the_example_passes_on_any_number_of_workers_and_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shutil.copytree(EXAMPLE, tmp_path / "example")
    run_pytest(tmp_path / "example", "-n", "2").assert_outcomes(passed=6)


def test_the_plugin_imports_nothing_of_ours_until_a_fixture_is_used() -> None:
    script = (
        "import sys, pytest; before = set(sys.modules); import oubliette.testing.plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) <= {
        "oubliette",
        "oubliette.testing",
        "oubliette.testing.plugin",
        "oubliette.version",
    }
