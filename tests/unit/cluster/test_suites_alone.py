"""What is left out of the suites on a cluster is there, and nothing else is left out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cluster import suites

SYSTEM = Path(__file__).parents[2] / "system"


@pytest.mark.parametrize("name", sorted(suites.ALONE))
def test_each_test_that_is_left_out_exists(name: str) -> None:
    module, _, function = name.partition("::")
    assert f"async def {function}(" in (SYSTEM / f"{module}.py").read_text()


def item(module: str, name: str, **params: str) -> SimpleNamespace:
    callspec = SimpleNamespace(params=params) if params else None
    return SimpleNamespace(path=SYSTEM / f"{module}.py", name=name, callspec=callspec)


def test_a_test_with_parameters_is_left_out_by_its_name() -> None:
    found = item("test_permissions", "test_a_decision_counts_after_the_server_was_killed[deny]")
    assert suites.alone(found) == suites.OWN


@pytest.mark.parametrize(
    ("door", "reason"),
    [("connected", None), ("embedded", suites.EMBEDDED), ("blocking", suites.EMBEDDED)],
)
def test_doors_of_the_python_api_that_lead_to_no_server_are_left_out(door, reason) -> None:
    assert suites.alone(item("test_python_api", f"test_x[{door}]", ob=door)) == reason


def test_a_server_is_alone_unless_the_variable_says_otherwise(monkeypatch) -> None:
    monkeypatch.delenv(suites.VARIABLE, raising=False)
    assert suites.nodes() == 0
    monkeypatch.setenv(suites.VARIABLE, "3")
    assert suites.nodes() == 3
