"""Plugin of pytest for users: a throw-away system, scripts, clocks, cassettes and crashes.

Pytest imports this module at every start, so it imports nothing that a fixture alone needs.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from oubliette.testing.agent_script import AgentScript
    from oubliette.testing.cassette import Cassette, RecordMode
    from oubliette.testing.crash import CrashRunner
    from oubliette.testing.model_server import ModelServer
    from oubliette.testing.skipping_clock import SkippingClock
    from oubliette.testing.throwaway import ThrowawayProject

RECORD = "--oubliette-record"
UPSTREAM_URL = "OUBLIETTE_UPSTREAM_URL"
UPSTREAM_KEY = "OUBLIETTE_UPSTREAM_KEY"
FOLDER = "cassettes"
_FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of cassettes."""
    parser.getgroup("oubliette").addoption(
        RECORD,
        choices=("none", "once", "all"),
        default="none",
        help="cassettes of model traffic: only replay them (none), record those that are missing"
        f" (once) or record all again (all); recording needs {UPSTREAM_URL}, and usually"
        f" {UPSTREAM_KEY}",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether a test failed: then its fixtures do not complain as well."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture
def oubliette_settings() -> dict[str, object]:
    """Settings of the throw-away system, such as {"sessions.max_live_per_project": 3}: override."""
    return {}


@pytest.fixture
def oubliette_script(request: pytest.FixtureRequest) -> Iterator[AgentScript]:
    """Scripts of the agents of the throw-away system; `agent` is the same object."""
    from oubliette.testing.agent_script import AgentScript, ScriptIncomplete

    script = AgentScript()
    yield script
    if not _failed(request):
        with _failing(ScriptIncomplete):
            script.assert_complete()


@pytest.fixture
def agent(oubliette_script: AgentScript) -> AgentScript:
    """Scripts for the turns of agents; a script that was not used to its end fails the test."""
    return oubliette_script


@pytest.fixture
def clock() -> SkippingClock:
    """Clock of the throw-away system, which `clock.skip(seconds)` moves ahead."""
    from oubliette.testing.skipping_clock import SkippingClock

    return SkippingClock()


@pytest.fixture
def oubliette_project(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Project of a throw-away system, for tests that block: `oubliette_project.run("say hello")`.

    The agent is the scripted one, unless `oubliette_settings` has another.
    """
    from oubliette.testing.throwaway import blocking_project

    with blocking_project(**_parts(request)) as project:
        yield project


@pytest.fixture
def oubliette_project_async(request: pytest.FixtureRequest) -> ThrowawayProject:
    """Block of a project of a throw-away system: `async with oubliette_project_async as project`.

    It is entered by the test, so it needs no plugin for async fixtures, and lives in its task.
    """
    from oubliette.testing.throwaway import ThrowawayProject

    return ThrowawayProject(**_parts(request))


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """Scripted model on loopback, for real agents: point one at `model.url`."""
    from oubliette.testing.loop_thread import on_loop_thread
    from oubliette.testing.model_server import ModelServer

    with on_loop_thread(ModelServer()) as server:
        yield server


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Iterator[Cassette]:
    """Recorded model, for real agents: point one at `cassette.url`.

    The file is `cassettes/<module>/<test>.jsonl` beside the test's file.
    """
    from oubliette.errors import OublietteError
    from oubliette.testing.cassette import Cassette, UnrecordedRequest
    from oubliette.testing.loop_thread import on_loop_thread

    file = _cassette_file(request.node)
    with _failing(OublietteError):
        made = Cassette(
            file,
            mode=cast("RecordMode", request.config.getoption(RECORD)),
            upstream=os.environ.get(UPSTREAM_URL),
            key=os.environ.get(UPSTREAM_KEY),
        )
    with on_loop_thread(made) as started:
        yield started
    with _failing(UnrecordedRequest):
        started.check()


@pytest.fixture
def crash(request: pytest.FixtureRequest) -> Iterator[CrashRunner]:
    """Runs of a program that is killed at a moment and started again on the same home."""
    from oubliette.testing.crash import CrashRunner
    from oubliette.testing.invariants import check_home

    with CrashRunner() as runner:
        yield runner
        if _failed(request):
            request.node.add_report_section("teardown", "crash", f"seed {runner.seed}")
        elif runner.has_database:
            check_home(runner.home)


@contextlib.contextmanager
def _failing(kind: type[BaseException]) -> Generator[None]:
    """Fail the test with the message of such an error, without a traceback of ours."""
    message: str | None = None
    try:
        yield
    except kind as error:
        message = str(error)
    if message is not None:
        pytest.fail(message, pytrace=False)


def _failed(request: pytest.FixtureRequest) -> bool:
    return request.node.stash.get(_FAILED, False)


def _parts(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the parts of a throw-away system that the test's fixtures determine."""
    own_clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    from oubliette.testing.skipping_clock import SkippingClock

    return {
        "script": request.getfixturevalue("oubliette_script"),
        "settings": request.getfixturevalue("oubliette_settings"),
        # A project may have another fixture of this name.
        "clock": own_clock if isinstance(own_clock, SkippingClock) else None,
    }


def _cassette_file(node: pytest.Item) -> Path:
    name = "".join(each if each.isalnum() or each in "-_." else "_" for each in node.name)
    return Path(node.path).parent / FOLDER / node.path.stem / f"{name}.jsonl"
