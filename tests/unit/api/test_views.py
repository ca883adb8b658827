"""What programs get of sessions and projects is all that the tools return."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from oubliette.api import views
from oubliette.api.events.usage import Usage
from oubliette.tools.schema import views as tool_views

PAIRS: list[tuple[type[msgspec.Struct], type[msgspec.Struct]]] = [
    (views.ProjectInfo, tool_views.ProjectView),
    (views.ProjectContainer, tool_views.ContainerView),
    (views.SessionInfo, tool_views.SessionDetail),
    (views.WaitInfo, tool_views.WaitView),
]


def fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {each.encode_name: each for each in msgspec.structs.fields(kind)}


@pytest.mark.parametrize(("info", "view"), PAIRS, ids=lambda kind: kind.__name__)
def test_programs_get_every_field_that_the_tools_return_and_no_other(info, view) -> None:
    assert set(fields(info)) == set(fields(view))


@pytest.mark.parametrize(("info", "view"), PAIRS, ids=lambda kind: kind.__name__)
def test_what_a_tool_may_return_as_null_may_be_none(info, view) -> None:
    for name, field in fields(view).items():
        if may_be_none(field.type):
            assert may_be_none(fields(info)[name].type), name


def test_usage_has_every_field_of_the_tools_and_adds_the_tokens_up() -> None:
    assert set(fields(tool_views.Usage)) < set(fields(Usage))
    told = tool_views.Usage(input_tokens=3, output_tokens=4, cost_usd=0.5)
    assert msgspec.convert(msgspec.to_builtins(told), Usage) == Usage(
        input_tokens=3, output_tokens=4, tokens=7, cost_usd=0.5
    )


def may_be_none(kind: Any) -> bool:
    try:
        msgspec.convert(None, kind)
    except msgspec.ValidationError:
        return False
    return True
