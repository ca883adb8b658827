"""A function that agents could not call is refused, with its name, the parameter and the remedy."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

from oubliette.api.tools import BadTool, Call, CallableTool
from oubliette.api.tools.signatures import signature_of

if TYPE_CHECKING:
    from decimal import Decimal as Unimported


class Strange:
    pass


def untyped(order, n: int = 1): ...
def gathers(a: int, *rest: int): ...
def gathers_names(a: int, **rest: int): ...
def positional(a: int, /, b: int): ...
def unsupported(a: Strange): ...
def unsupported_inside(a: dict[str, list[Strange]]): ...
def two_objects(a: Annotated[list[int] | tuple[int], "x"]): ...
def unimported(a: Unimported): ...
def asks(call, a: int): ...
def many():
    yield 1


async def many_later():
    yield 1


class Orders:
    def find(self, order: str) -> str:
        return order


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (untyped, ["untyped()", "parameter order", "no type hint", "order: str"]),
        (gathers, ["gathers()", "*rest", "by name"]),
        (gathers_names, ["gathers_names()", "**rest", "by name"]),
        (positional, ["positional()", "parameter a", "positional-only", "`/`"]),
        (unsupported, ["unsupported()", "parameter a", "Strange", "dataclasses"]),
        (unsupported_inside, ["unsupported_inside()", "parameter a", "Strange"]),
        (two_objects, ["two_objects()", "parameter a", "more than one array-like"]),
        (unimported, ["unimported()", "Unimported", "TYPE_CHECKING"]),
        (asks, ["asks()", "parameter call", "call: oubliette.Call"]),
        (Orders.find, ["Orders.find()", "without its object"]),
        (many, ["many()", "return a list"]),
        (many_later, ["many_later()", "return a list"]),
        (int.from_bytes, ["hint"]),
        (print, ["print()"]),
    ],
)
def test_a_function_is_refused_by_name_with_the_remedy(function, parts):
    with pytest.raises(BadTool) as refused:
        CallableTool(function)
    for part in parts:
        assert part in str(refused.value)


def test_a_type_that_is_defined_in_a_function_is_refused_under_postponed_annotations():
    class Local:
        pass

    def uses(a: Local): ...

    with pytest.raises(BadTool, match="Local cannot be found at run time"):
        CallableTool(uses)


def test_types_that_agents_do_not_give_need_not_exist_at_run_time():
    def find(db: Unimported, order: str) -> Unimported: ...

    assert CallableTool(functools.partial(find, db=3)).input_schema["required"] == ["order"]


def test_a_cached_function_is_described_by_the_one_inside():
    @functools.cache
    def find(order: str) -> str: ...

    assert CallableTool(find).input_schema["required"] == ["order"]


def test_a_name_that_agents_cannot_use_is_refused():
    def größe(a: int): ...

    with pytest.raises(BadTool, match="give another one"):
        CallableTool(größe)


def test_the_call_is_found_by_its_type_under_any_name_and_is_not_the_agents_to_give():
    def first(call: Call, a: int): ...
    def last(a: int, *, context: Call | None = None): ...
    def old(a: int, where: Optional[Call] = None): ...
    def with_text(a: int, where: Annotated[Call, "given by us"]): ...

    for function in (first, last, old, with_text):
        found = signature_of(function, {})
        assert [each.name for each in found.parameters] == ["a"]
        assert len(found.call_parameters) == 1


def test_values_that_a_partial_fixed_are_not_the_agents_to_choose():
    def find(db: Any, order: str, *, limit: int = 3, secret: object = None): ...

    narrowed = functools.partial(functools.partial(find, object()), secret=object())
    assert [each.name for each in signature_of(narrowed, {}).parameters] == ["order", "limit"]
    assert CallableTool(narrowed).name == "find"


def test_a_default_of_none_makes_a_parameter_optional():
    def find(order: str = None): ...

    schema = CallableTool(find).input_schema
    assert schema["properties"]["order"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert "required" not in schema or schema["required"] == []


def test_a_field_of_pydantic_as_a_default_is_refused_with_what_to_write():
    import pydantic

    def find(order: str = pydantic.Field(description="x")): ...

    with pytest.raises(BadTool, match=r"order: Annotated\[TYPE, Field"):
        CallableTool(find)
