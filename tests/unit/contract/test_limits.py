"""Limits of a tree: bounds hold for what is given and configured, and not for what is stored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from oubliette.config import json_schema as config_schema
from oubliette.contract import validation
from oubliette.contract.limits import Limits, TreeLimits, TreesConfig
from oubliette.errors import InvalidParameter
from oubliette.records import Project
from oubliette.runtime.store import codec
from tests.unit.runtime.store import samples

BOUNDS = ("minimum", "maximum", "exclusiveMinimum")


def bounds(part: dict[str, Any]) -> dict[str, float]:
    """The bounds of a number that may be null, or a text."""
    kinds = [part, *part.get("anyOf", ())]
    return {name: kind[name] for kind in kinds for name in BOUNDS if name in kind}


def test_each_limit_has_a_default_and_is_given_and_configured_within_the_same_bounds() -> None:
    given = validation.schema_of(TreeLimits)["properties"]
    configured = config_schema.schema()["properties"]["trees"]["properties"]
    of_the_disk = {"max_log_bytes"}  # no key sets it
    assert set(given) == set(configured) - of_the_disk == set(Limits.__struct_fields__)
    for name, part in given.items():
        assert bounds(part), name
        assert bounds(part) == bounds(configured[name]), name
    defaults = {name: getattr(TreesConfig(), name) for name in given}
    assert validation.decode(TreeLimits, defaults, "project_create") == TreeLimits(**defaults)


@pytest.mark.parametrize(("name", "value"), [("max_depth", 101), ("max_turn_seconds", 0.0)])
def test_limits_that_no_call_may_set_are_read_from_the_database_as_they_are(
    name: str, value: float
) -> None:
    with pytest.raises(InvalidParameter, match=f"^{name}: must be"):
        validation.decode(TreeLimits, {name: value}, "project_create")
    row: dict[str, Any] = msgspec.to_builtins(samples.project())
    row["limits"] = {name: value, "max_of_a_later_release": 1}
    stored = codec.decode(Project, msgspec.json.encode(row))
    assert stored.limits == Limits(**{name: value})  # type: ignore[arg-type]


def test_limits_are_stored_in_one_object_with_a_name_for_each() -> None:
    stored = msgspec.to_builtins(samples.project(limits=Limits(max_turn_steps=7)))
    assert stored["limits"] == dict.fromkeys(Limits.__struct_fields__) | {"max_turn_steps": 7}
