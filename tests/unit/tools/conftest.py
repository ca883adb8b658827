from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.tools import toolkit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.tools.toolkit import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with toolkit.bench() as made:
        yield made
