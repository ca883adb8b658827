"""What every test gets: asyncio as the backend, Hypothesis profiles, leak checks, `requires`."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import requirements

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

# ---------------------------------------------------------------- Hypothesis
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "ci", max_examples=60, deadline=None, suppress_health_check=_SLOW, print_blob=True
)
settings.register_profile(
    "soak", max_examples=1000, deadline=None, suppress_health_check=_SLOW, print_blob=True
)
_USUAL = "soak" if os.environ.get("OUBLIETTE_SOAK") else "ci"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", _USUAL))


# ---------------------------------------------------------------- asyncio
@pytest.fixture
def anyio_backend() -> str:
    """Asyncio is the only loop we support (DESIGN 3.1)."""
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
    unknown = requirements.demanded() - requirements.PROBES.keys()
    if unknown:
        known = ", ".join(sorted(requirements.PROBES))
        raise pytest.UsageError(
            f"{requirements.VARIABLE} names {', '.join(sorted(unknown))}; known are: {known}"
        )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or fail where it is demanded, a test whose requirement the machine does not meet."""
    for mark in item.iter_markers("requires"):
        for name in mark.args:
            if name not in requirements.PROBES:
                pytest.fail(f"requires({name!r}): there is no such requirement", pytrace=False)
            reason = requirements.missing(name)
            if reason is None:
                continue
            if name in requirements.demanded():
                pytest.fail(f"{name} is demanded, and missing: {reason}", pytrace=False)
            pytest.skip(f"needs {name}: {reason}")
