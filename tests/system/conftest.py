"""One server process per module, shared by its tests; each test has sessions of its own.

A module that needs other settings says so in `SETTINGS` (`section.key` → value).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from oubliette.testing.fork_server import Zygote
from oubliette.testing.model_server import ModelServer
from oubliette.testing.server import ServerProcess
from tests.cluster import suites as cluster_suites
from tests.cluster.servers import ClusterProcess, RayOfRun
from tests.system.site import KINDS, Site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

ROOMY = {"sessions.max_live_per_project": 500}
COMMAND = 60.0  # seconds that one may take on a busy machine


class Done(NamedTuple):
    """A command that has run."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, with `-o json`."""
        return json.loads(self.out)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One loop for a module, in which its server is looked after."""
    return "asyncio"


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Forks servers; one for all tests of this process."""
    with Zygote() as started:
        yield started


@pytest.fixture(scope="session")
def cluster_of_run(request: pytest.FixtureRequest) -> Iterator[RayOfRun | None]:
    """The machines of the run's servers, if they are to be nodes of a cluster."""
    number = cluster_suites.nodes()
    if not number:
        yield None
        return
    with RayOfRun(tuple(f"node{each}" for each in range(1, number + 1))) as cluster:
        yield cluster


@pytest.fixture(scope="module")
async def model(anyio_backend: str) -> AsyncIterator[ModelServer]:
    """A scripted model, for real agents."""
    async with ModelServer() as started:
        yield started


@pytest.fixture(scope="module")
async def shared_site(
    request: pytest.FixtureRequest, cluster_of_run: RayOfRun | None, anyio_backend: str
) -> AsyncIterator[Site]:
    """The server of the module, or its cluster."""
    settings = {**ROOMY, **getattr(request.module, "SETTINGS", {})}
    if cluster_of_run is None:
        zygote = request.getfixturevalue("zygote")
        served = ServerProcess(zygote=zygote, settings=settings)
    else:
        served = ClusterProcess(cluster_of_run, settings)
    async with served as server:
        await server.start()
        site = Site(server)
        async with site.eyes:
            await site.open()
            yield site


@pytest.fixture
async def site(shared_site: Site) -> AsyncIterator[Site]:
    """The server of the module, without sessions of other tests."""
    yield shared_site
    await shared_site.tidy()


@pytest.fixture
def oubliette(site: Site) -> Callable[..., Awaitable[Done]]:
    """Runs a command on the server's home, as a person does; keywords go into its environment."""

    async def run(*words: str, stdin: str = "", **environ: str) -> Done:
        mine = {"OUBLIETTE_HOME": str(site.server.home), "NO_COLOR": "1", **environ}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "oubliette.cli.main", *words, env={**os.environ, **mine},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(COMMAND):
                out, err = await process.communicate(stdin.encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return Done(process.returncode or 0, out.decode(), err.decode())

    return run


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of caller in turn; the core of the suite has one of them per test."""
    return str(request.param)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a cluster, leave out what is of one server alone.

    What only collects a long wait comes last in its module, so that it waits for nothing."""
    if cluster_suites.nodes():
        for item in items:
            cluster_suites.mark(item)
    last = [item for item in items if getattr(getattr(item, "obj", None), "runs_last", False)]
    for item in last:
        items.remove(item)
        module = [place for place, other in enumerate(items) if other.path == item.path]
        items.insert(module[-1] + 1 if module else len(items), item)
