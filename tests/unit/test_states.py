"""docs/states.md is the page that .ci/states.py makes of the tables of states."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "states.py"


@pytest.fixture(scope="module")
def states() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_the_page_of_states_is_current(states: dict[str, Any]) -> None:
    current = states["PAGE"].read_text(encoding="utf-8") == states["page"]()
    assert current, "renew it: python .ci/states.py"


def test_every_state_of_a_drawing_is_reached_from_its_beginning(states: dict[str, Any]) -> None:
    for machine in states["MACHINES"]:
        reached = set(machine.first)
        while more := {
            after
            for (before, _), after in machine.table.items()
            if before in reached and after not in reached
        }:
            reached |= more
        assert {before for before, _ in machine.table} <= reached, machine.title
        assert set(machine.last) == {*machine.table.values()} - {b for b, _ in machine.table}
