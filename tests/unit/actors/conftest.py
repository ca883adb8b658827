from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.actors import fakes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.unit.actors.fakes import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with fakes.world(tmp_path) as made:
        yield made
