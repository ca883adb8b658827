"""The real agents' programs, mounted read-only into containers of the tests' image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.containers import Mount
from tests import requirements

if TYPE_CHECKING:
    from tests.conformance.engines import Bench

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PROGRAMS = [pytest.param(name, marks=pytest.mark.requires(name)) for name in ("opencode", "droid")]


@pytest.fixture
def imaged(bench: Bench) -> Bench:
    """The bench of an engine that has images."""
    return bench


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_mounted_agents_program_runs_in_a_closed_container(
    imaged: Bench, program: str
) -> None:
    here = Path(requirements.program(program))
    inside = f"/opt/oubliette/agents/{program}"
    spec = imaged.spec()
    mounts = (*spec.mounts, Mount(here, inside, read_only=True))
    running = await imaged.start(imaged.spec(mounts=mounts))
    done = await running.run(inside, "--version", env={**running.info.inside.env, "HOME": "/tmp"})
    assert done.exit is not None
    assert done.exit.code == 0, done.err
    assert done.text.strip()[:1].isdigit()
