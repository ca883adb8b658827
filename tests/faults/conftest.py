"""Server processes that can be started, killed and started again in a fraction of a second."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from oubliette.testing.fork_server import Zygote
from oubliette.testing.server import ServerProcess
from tests.images import ensure_image
from tests.selection import without_sandbox

pytest.register_assert_rewrite("tests.faults.history", "tests.faults.load")

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Forks servers; one for all tests of this process."""
    with Zygote() as started:
        yield started


def settings_of(runtime: str) -> dict[str, object]:
    """What a server on this runtime needs; nothing of it needs a network."""
    if runtime == "process":
        return {}
    return {
        "containers.runtime": runtime,
        "containers.image": ensure_image(runtime),
        "containers.network": "none",
    }


ENGINES = [pytest.param(each, marks=pytest.mark.requires(each)) for each in ("docker", "podman")]


@pytest.fixture(params=ENGINES)
async def engine_server(
    request: pytest.FixtureRequest, zygote: Zygote
) -> AsyncIterator[ServerProcess]:
    """As `server`, on docker and on podman."""
    async with ServerProcess(zygote=zygote, settings=settings_of(request.param)) as process:
        yield process
        print(process.log()[-50_000:] if process.log_file.exists() else "")


@pytest.fixture(params=["process", *ENGINES])
async def any_server(
    request: pytest.FixtureRequest, zygote: Zygote
) -> AsyncIterator[ServerProcess]:
    """As `server`, on every runtime."""
    async with ServerProcess(zygote=zygote, settings=settings_of(request.param)) as process:
        yield process
        print(process.log()[-50_000:] if process.log_file.exists() else "")


@pytest.fixture(
    params=[
        pytest.param("bubblewrap", marks=pytest.mark.requires("bubblewrap")),
        pytest.param("best-effort", marks=without_sandbox()),
    ]
)
async def sandbox_server(
    request: pytest.FixtureRequest, zygote: Zygote
) -> AsyncIterator[ServerProcess]:
    """As `server`, in a sandbox where there is one, and as plain processes everywhere."""
    async with ServerProcess(zygote=zygote, settings={"process.sandbox": request.param}) as process:
        yield process
        print(process.log()[-50_000:] if process.log_file.exists() else "")


@pytest.fixture
async def server(zygote: Zygote) -> AsyncIterator[ServerProcess]:
    """A server process that is not started yet, on a home of its own."""
    async with ServerProcess(zygote=zygote) as process:
        yield process
        if process.running:
            with contextlib.suppress(Exception):
                await process.arm("tasks")
        print(process.log()[-50_000:] if process.log_file.exists() else "")  # shown if it fails
