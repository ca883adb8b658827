"""One bench per test, for each engine of the list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.engines import ENGINES, Bench, Engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def _parameters() -> list[object]:
    return [
        pytest.param(
            engine,
            id=engine.name,
            marks=[pytest.mark.requires(engine.requires)] if engine.requires else [],
        )
        for engine in ENGINES
    ]


@pytest.fixture(params=_parameters())
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.param


@pytest.fixture
async def bench(engine: Engine, anyio_backend: str) -> AsyncIterator[Bench]:
    made = Bench(engine)
    await made.runtime.ping()
    try:
        yield made
    finally:
        await made.aclose()
