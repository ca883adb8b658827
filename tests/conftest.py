"""What every test gets: asyncio as the backend, Hypothesis profiles, leak checks, `requires`.

Which tests are run at all, and what is said of the others, is told in `selection`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from oubliette.cluster.environment import OTHER_MACHINES, SETTINGS
from oubliette.testing import fault_injection
from tests import exception_groups, requirements, selection

pytest_plugins = ("tests.postgres",)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

# ---------------------------------------------------------------- Hypothesis
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "ci",
    max_examples=selection.WHOLE_EXAMPLES,
    deadline=None,
    suppress_health_check=_SLOW,
    print_blob=True,
)
settings.register_profile(
    "soak", max_examples=1000, deadline=None, suppress_health_check=_SLOW, print_blob=True
)
settings.register_profile("core", settings.get_profile("ci"), max_examples=20)
settings.register_profile(  # of `.ci/run`: the same examples each time
    "gate", settings.get_profile("core"), derandomize=True, database=None
)
_SHORT = "core" if selection.share() == "core" else "ci"
_USUAL = "soak" if os.environ.get("OUBLIETTE_SOAK") else _SHORT
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", _USUAL))


# ---------------------------------------------------------------- messages
# Actors of the servers that tests start share nothing but what they were made with.
os.environ.setdefault(fault_injection.ENCODE, "1")

# Ray reads its settings when it is imported, which may be by any test that looks at all modules.
os.environ.update(SETTINGS | {OTHER_MACHINES: "0"})


# ---------------------------------------------------------------- the log
# By default structlog draws a traceback by means of rich, local variables and all: a hundred times
# as long as plain text, which is how a server writes it.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["level", "event"]),
    ]
)


# ---------------------------------------------------------------- asyncio
@pytest.fixture
def anyio_backend() -> str:
    """Asyncio is the only loop we support."""
    return "asyncio"


# ---------------------------------------------------------------- leaks
@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """A test ends the threads that it has started."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        # Those of asyncio.to_thread and anyio belong to the loop's executor, not to the test.
        if thread.name.startswith(("asyncio_", "AnyIO", "ThreadPoolExecutor")):
            continue
        thread.join(5)
        assert not thread.is_alive(), f"the test left the thread {thread.name}"


@pytest.fixture
async def no_leaked_tasks() -> AsyncIterator[None]:
    """A test that asks for this ends the tasks that it has started."""
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    # The plugin's own tasks, in which tests and fixtures run.
    left -= {task for task in left if "TestRunner." in repr(task.get_coro())}
    if left:
        await asyncio.wait(left, timeout=1)
    names = [repr(task) for task in left if not task.done()]
    assert not names, f"the test left tasks: {names}"


# ---------------------------------------------------------------- requires
def pytest_configure(config: pytest.Config) -> None:
    """Refuse names in OUBLIETTE_REQUIRE that nothing goes by."""
    config.addinivalue_line("markers", "whole: run by `make test-all` alone (see `selection`)")
    config.stash[LEFT_OUT] = Counter()
    unknown = requirements.demanded() - requirements.PROBES.keys()
    if unknown:
        known = ", ".join(sorted(requirements.PROBES))
        raise pytest.UsageError(
            f"{requirements.VARIABLE} names {', '.join(sorted(unknown))}; known are: {known}"
        )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or fail where it is demanded, a test whose requirement the machine does not meet."""
    for name in selection.needs(item):
        if name not in requirements.PROBES:
            pytest.fail(f"requires({name!r}): there is no such requirement", pytrace=False)
        reason = requirements.missing(name)
        if reason is None:
            continue
        if name in requirements.demanded():
            pytest.fail(f"{name} is demanded, and missing: {reason}", pytrace=False)
        pytest.skip(f"needs {name}: {reason}")


# ---------------------------------------------------------------- what has failed
@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Iterator[None]:
    """Name the exceptions of a group in the summary, which else has their number alone."""
    report: Any = yield
    if call.excinfo is not None and (parts := exception_groups.shown(call.excinfo.value)):
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None:
            crash.message = f"{crash.message}: {parts}"
    return report


# ---------------------------------------------------------------- core and whole
LEFT_OUT = pytest.StashKey[Counter[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not of the share, or of the part of it, that alone is asked for."""
    kept, without = selection.choose(items)
    kept = selection.part(kept)
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=list(set(items) - set(kept)))
        items[:] = kept
    config.stash[LEFT_OUT] = without
    if hasattr(config, "workeroutput"):  # every worker of xdist collects all
        config.workeroutput["left_out"] = dict(without)


def pytest_collection_finish() -> None:
    """Take what was collected out of the garbage collector's sight.

    Thousands of tests and all modules live until the end: every full collection would visit them.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Hear from a worker of xdist what it has left out."""
    told = getattr(node, "workeroutput", {}).get("left_out")
    if told is not None:
        node.config.stash[LEFT_OUT] = Counter(told)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Iterator[None]:
    """Say last, after all other summaries, what was left out, and how to have it."""
    yield
    skipped = terminalreporter.stats.get("skipped", [])
    for line in selection.summary(config.stash[LEFT_OUT], skipped):
        terminalreporter.write_line(line)
