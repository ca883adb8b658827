"""The table of tools: from functions and objects, each name once, in order."""

from __future__ import annotations

import functools
import math
from contextlib import AsyncExitStack
from typing import Any

import pytest

from oubliette.api.tools import (
    BadTool,
    Call,
    CallableTool,
    PreparedTool,
    ToolSource,
    opened_table,
    tool,
    tool_table,
)


class Service:
    """Has marked methods."""

    def __init__(self, base: int = 0) -> None:
        self.base = base

    @tool
    def add(self, a: int) -> int:
        """Add to the base."""
        return self.base + a

    @tool(name="later", durable=True)
    async def add_later(self, a: int, call: Call) -> int:
        return self.base + a

    @tool
    @staticmethod
    def double(a: int) -> int:
        return 2 * a

    @staticmethod
    @tool
    def triple(a: int) -> int:
        return 3 * a

    @tool
    @classmethod
    def named(cls, a: int) -> str:
        return cls.__name__ * a

    @classmethod
    @tool(name="shouted")
    def named_loudly(cls, a: int) -> str:
        return cls.__name__.upper() * a

    @tool
    def _hidden(self) -> int:
        return self.base

    def close(self) -> None: ...


class Plain:
    """Has none that is marked."""

    limit: int = 3

    @property
    def costly(self) -> int:
        raise AssertionError("a property was read")

    def find(self, order: str) -> str:
        return order

    async def list_all(self) -> list:
        return []

    def _connect(self) -> None: ...


@pytest.mark.anyio
async def test_the_marked_methods_of_an_object_are_tools_whatever_kind_they_are():
    table = tool_table([Service(3)])
    assert list(table) == ["add", "later", "double", "triple", "named", "shouted", "_hidden"]
    results = {
        name: await ready.run({} if name == "_hidden" else {"a": 2}, Call())
        for name, ready in table.items()
    }
    assert results == {
        "add": 5,
        "later": 5,
        "double": 4,
        "triple": 6,
        "named": "ServiceService",
        "shouted": "SERVICESERVICE",
        "_hidden": 3,
    }
    assert table["later"].durable
    assert table["add"].description == "Add to the base."


def test_one_method_can_be_given_alone():
    assert list(tool_table([Service().add, Service.double, Service.named, Plain().find])) == [
        "add",
        "double",
        "named",
        "find",
    ]


def test_without_marks_the_public_methods_are_tools():
    assert list(tool_table([Plain()])) == ["find", "list_all"]


def test_a_public_method_without_hints_is_named_with_the_way_out():
    class Loose(Plain):
        def poke(self, what): ...

    with pytest.raises(BadTool, match=r"Loose, of which all public.*poke\(\): parameter what"):
        tool_table([Loose()])


def test_a_method_that_overrides_a_marked_one_is_a_tool_and_one_that_is_removed_is_not():
    class Narrow(Service):
        def add(self, a: int, b: int = 1) -> int:
            return a + b

        triple = None

    table = tool_table([Narrow()])
    assert "triple" not in table
    assert list(table["add"].input_schema["properties"]) == ["a", "b"]
    assert table["add"].description == "Add to the base."


def test_an_object_that_can_be_called_is_one_tool_unless_its_methods_are_marked():
    class Greet:
        def __call__(self, name: str) -> str:
            return f"Hello {name}"

        def other(self) -> None: ...

    class Marked(Greet):
        @tool
        def only(self) -> None: ...

    class MarkedItself:
        @tool(durable=True)
        def __call__(self, name: str) -> str:
            return name

    assert list(tool_table([Greet()])) == ["Greet"]
    assert tool_table([MarkedItself()])["MarkedItself"].durable
    assert list(tool_table([Marked()])) == ["only"]
    assert list(tool_table([tool(name="greet")(Greet())])) == ["greet"]


def test_prepared_tools_and_partials_stand_beside_functions():
    def add(a: int, b: int) -> int:
        return a + b

    ready = CallableTool(add)
    more = tool(name="more")(functools.partial(add, b=1))
    table = tool_table([ready, more])
    assert table["add"] is ready
    assert list(table["more"].input_schema["properties"]) == ["a"]


def test_two_tools_of_one_name_are_refused_naming_both():
    def add(a: int) -> int:
        return a

    with pytest.raises(BadTool) as refused:
        tool_table([add, Service()])
    assert "two tools are named add" in str(refused.value)
    assert "add()" in str(refused.value)
    assert "Service.add()" in str(refused.value)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (Service, "no list"),
        ("find", "no list"),
        ({"a": len}, "no list"),
        (test_one_method_can_be_given_alone, r"tools=\[…\]"),
        ([Service], "Service is a class"),
        ([math], "math is a module"),
        (["find"], "no function"),
        ([3], "no function"),
        ([object()], "no public methods"),
        ([None], "no function"),
    ],
)
def test_what_is_no_tool_is_refused_with_what_to_give(given, named):
    with pytest.raises(BadTool, match=named):
        tool_table(given)


class Source(ToolSource):
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    async def open(self, stack: AsyncExitStack) -> list[PreparedTool]:
        self.log.append(f"open {self.name}")
        stack.callback(self.log.append, f"close {self.name}")

        def found() -> str:
            return self.name

        return [CallableTool(tool(name=self.name)(found))]


@pytest.mark.anyio
async def test_sources_are_opened_in_their_place_and_closed_with_the_stack():
    log: list[str] = []
    async with AsyncExitStack() as stack:
        table = await opened_table([Source("a", log), Service.double, Source("b", log)], stack)
        assert list(table) == ["a", "double", "b"]
        assert log == ["open a", "open b"]
    assert log[2:] == ["close b", "close a"]


@pytest.mark.anyio
async def test_nothing_is_opened_if_a_function_is_refused():
    log: list[str] = []

    def untyped(a): ...

    async with AsyncExitStack() as stack:
        with pytest.raises(BadTool, match="untyped"):
            await opened_table([Source("a", log), untyped], stack)
    assert log == []


def test_a_source_that_is_not_open_is_refused():
    with pytest.raises(BadTool, match="is not open"):
        tool_table([Source("a", [])])


def test_the_definitions_are_those_of_the_server():
    import msgspec

    from oubliette.contract.agent_options import ToolDefinition

    definitions: list[dict[str, Any]] = [
        each.definition for each in tool_table([Service()]).values()
    ]
    assert msgspec.convert(definitions, list[ToolDefinition])[1].durable
