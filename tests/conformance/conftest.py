"""One bench per test, for each engine of the list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.agents import Agent, pairs
from tests.conformance.engines import ENGINES, IN_PART, Bench, Engine
from tests.selection import without_sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that asks for `engine` on every engine; `isolated` and `imaged` on those that are.

    `docker_api` is for those that speak docker's.
    One that asks for `agent` too runs for the pairs of `pairs`.
    """
    if "engine" not in metafunc.fixturenames:
        return
    if "agent" in metafunc.fixturenames:
        metafunc.parametrize(
            ("agent", "engine"),
            [
                pytest.param(
                    agent, engine, id=f"{agent.name}-{engine.name}", marks=needs(agent, engine)
                )
                for agent, engine in pairs(metafunc.function)
            ],
        )
        return
    isolated = "isolated" in metafunc.fixturenames
    imaged = "imaged" in metafunc.fixturenames
    docker_api = "docker_api" in metafunc.fixturenames
    metafunc.parametrize(
        "engine",
        [
            pytest.param(engine, id=engine.name, marks=needs(engine))
            for engine in [*ENGINES, *IN_PART.get(metafunc.module.__name__.rpartition(".")[2], [])]
            if (engine.isolated or not isolated)
            and (engine.image is not None or not imaged)
            and (engine.speaks_docker or not docker_api)
        ],
    )


def needs(*of: Agent | Engine) -> list[pytest.MarkDecorator]:
    names = [each.requires for each in of if each.requires]
    if "apple-standin" in names and len(names) > 1:
        names.append("docker")  # its bridge leads to the agent's model
    marks = [pytest.mark.requires(name) for name in names]
    if any(isinstance(each, Engine) and not each.isolated for each in of):
        marks += without_sandbox()
    return marks


@pytest.fixture
def isolated(bench: Bench) -> Bench:
    """The bench of an engine that isolates."""
    assert bench.runtime.capabilities.isolation == "container"
    return bench


@pytest.fixture
async def bench(engine: Engine, anyio_backend: str) -> AsyncIterator[Bench]:
    made = Bench(engine)
    await made.runtime.ping()
    try:
        yield made
    finally:
        await made.aclose()
