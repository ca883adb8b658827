"""Tools and policies that a program gives in a wrong form are refused with the remedy."""

from __future__ import annotations

from typing import Any, cast

import pytest

from oubliette.api.callers.caller import Caller
from oubliette.api.callers.caller_loops import OpenedTools
from oubliette.api.permissions import policy_of
from oubliette.api.tools import BadTool
from oubliette.errors import InvalidParameter


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize("tools", [add, "add", {"add": add}, 7])
@pytest.mark.anyio
async def test_tools_that_are_no_list_are_refused(tools, anyio_backend) -> None:
    with pytest.raises(BadTool, match="no list of tools") as caught:
        await OpenedTools().open(tools)
    assert "tools=[" in (caught.value.hint or "")


@pytest.mark.parametrize("tools", [add, "add"])
def test_a_caller_refuses_tools_that_are_no_list_when_it_is_made(tools) -> None:
    with pytest.raises(BadTool, match="no list of tools"):
        Caller(cast("Any", None), "shop", tools)


@pytest.mark.parametrize("given", ["allow", "deny", True, ["read"]])
def test_a_policy_that_is_neither_rules_nor_a_function_is_named(given) -> None:
    with pytest.raises(InvalidParameter, match="on_permission") as caught:
        policy_of(given)
    assert caught.value.field == "on_permission"
    assert "rules" in (caught.value.hint or "")


def test_a_function_is_a_policy_of() -> None:
    assert policy_of(lambda request: "deny") is not None
    assert policy_of(None) is None
