"""Schemas of tools are valid JSON Schema without references, as the server and clients take them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import jsonschema
import msgspec
import pydantic
import pytest
from msgspec import Meta

from oubliette.api.tools import CallableTool
from oubliette.config.schema import CallersConfig
from oubliette.contract.agent_options import ToolDefinition
from oubliette.tools.tools_offered_by_caller import normalised


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


@dataclass
class Line:
    sku: str
    count: Annotated[int, Meta(ge=1, description="How many.")] = 1
    tags: list[str] = field(default_factory=list)


class Place(TypedDict):
    street: str
    door: NotRequired[int]


class Order(msgspec.Struct, tag=True):
    """An order."""

    lines: list[Line]
    to: Place
    colour: Colour = Colour.RED


class Gift(msgspec.Struct, tag=True):
    text: str


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


class Person(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(min_length=1)]
    boss: Person | None = None
    colour: Colour = Colour.BLUE


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


def schema_of(function) -> dict[str, Any]:
    tool = CallableTool(function)
    jsonschema.Draft202012Validator.check_schema(tool.input_schema)
    (accepted,) = normalised(
        (msgspec.convert(tool.definition, ToolDefinition),), "caller", CallersConfig()
    )
    assert accepted.input_schema == tool.input_schema
    return tool.input_schema


def accepts(schema: dict[str, Any], arguments: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(arguments)


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [each for part in node.values() for each in references(part)]
    if isinstance(node, list):
        return [each for part in node for each in references(part)]
    return []


def test_nested_types_enums_and_limits_stand_where_they_are_used():
    def send(order: Order | Gift, size: Size = Size.SMALL, mode: Literal["fast", "slow"] = "slow"):
        """Send.

        Args:
            order: what to send.
            size: of the parcel.
        """

    schema = schema_of(send)
    assert references(schema) == []
    assert schema["required"] == ["order"]
    assert schema["properties"]["order"]["description"] == "what to send."
    assert schema["properties"]["size"] == {
        "enum": [1, 2],
        "type": "integer",
        "description": "of the parcel.",
        "default": 1,
    }
    assert schema["properties"]["mode"]["default"] == "slow"
    good = {"type": "Order", "lines": [{"sku": "a", "count": 2}], "to": {"street": "x"}}
    assert accepts(schema, {"order": good})
    assert accepts(schema, {"order": {"type": "Gift", "text": "hi"}})
    assert not accepts(schema, {"order": {**good, "lines": [{"sku": "a", "count": 0}]}})
    assert not accepts(schema, {"order": {**good, "colour": "green"}})
    assert not accepts(schema, {"order": good, "more": 1})
    assert not accepts(schema, {})


def test_a_type_that_contains_itself_is_a_definition():
    def plant(tree: Tree, other: Tree | None = None): ...

    schema = schema_of(plant)
    assert set(references(schema)) == {"#/$defs/Tree"}
    assert accepts(schema, {"tree": {"name": "a", "children": [{"name": "b"}]}})
    assert not accepts(schema, {"tree": {"name": "a", "children": [{"nam": "b"}]}})


def test_types_of_pydantic_are_described_by_pydantic():
    def greet(person: Person, pets: list[Pet], n: Annotated[int, pydantic.Field(gt=3)] = 4):
        """Greet.

        Args:
            person: who.
        """

    schema = schema_of(greet)
    assert schema["properties"]["person"]["description"] == "who."
    assert schema["properties"]["n"]["exclusiveMinimum"] == 3
    good = {"person": {"name": "a", "boss": {"name": "b"}}, "pets": [{"kind": "cat"}]}
    assert accepts(schema, good)
    assert not accepts(schema, {**good, "person": {"name": ""}})
    assert not accepts(schema, {**good, "pets": [{"kind": "cow"}]})
    assert not accepts(schema, {**good, "n": 3})
    assert all(name.removeprefix("#/$defs/") in schema["$defs"] for name in references(schema))


def test_a_model_inside_a_dataclass_is_described_too():
    @dataclass
    class Team:
        lead: Cat

    def form(team): ...

    form.__annotations__ = {"team": Team}
    schema = schema_of(form)
    assert accepts(schema, {"team": {"lead": {"kind": "cat"}}})
    assert not accepts(schema, {"team": {"lead": {"kind": "dog"}}})


def test_a_schema_that_would_become_too_long_keeps_its_definitions():
    kind: Any = Line
    for place in range(9):  # 2 ** 9 copies of the last one
        kind = msgspec.defstruct(f"Level{place}", [("a", kind), ("b", kind)])

    def deep(a): ...

    deep.__annotations__ = {"a": kind}
    schema = schema_of(deep)
    assert "Line" in schema["$defs"]
    assert len(msgspec.json.encode(schema)) < 3000


def test_descriptions_in_annotations_win_over_those_of_the_docstring():
    def f(
        a: Annotated[int, "text"],
        b: Annotated[int, Meta(description="meta")],
        c: Annotated[str, "perhaps"] | None = None,
        d: Annotated[Cat | None, "a cat"] = None,
    ):
        """F.

        Args:
            a: docs
            b: docs
            c: docs
        """

    properties = schema_of(f)["properties"]
    assert [properties[name]["description"] for name in "abcd"] == [
        "text",
        "meta",
        "perhaps",
        "a cat",
    ]


@dataclass
class Address:
    """Where a parcel goes.

    Attributes:
        street: with its number.
        town: without its code.
    """

    street: str
    town: Annotated[str, Meta(description="of the meta")]
    note: str = ""


class Parcel(msgspec.Struct, rename="camel"):
    """A parcel.

    Args:
        sent_to: the first one.
    """

    sent_to: Address
    returned_to: list[Address | None] = []


def test_fields_are_described_by_the_docstrings_of_their_classes():
    def send(parcel: Parcel, tree: Tree): ...

    parcel = schema_of(send)["properties"]["parcel"]
    assert parcel["description"] == "A parcel."
    inner = parcel["properties"]["sentTo"]
    assert inner["description"] == "the first one."
    assert {name: part.get("description") for name, part in inner["properties"].items()} == {
        "street": "with its number.",
        "town": "of the meta",
        "note": None,
    }
    (back, _) = parcel["properties"]["returnedTo"]["items"]["anyOf"]
    assert back["description"] == "Where a parcel goes."
    assert back["properties"]["street"]["description"] == "with its number."


def test_a_default_that_has_no_form_in_json_is_not_shown():
    def f(a: Any = object(), b: tuple[int, ...] = (1, 2), c: Line = Line("x")): ...

    properties = schema_of(f)["properties"]
    assert "default" not in properties["a"]
    assert properties["b"]["default"] == [1, 2]
    assert properties["c"]["default"] == {"sku": "x", "count": 1, "tags": []}


def test_a_function_without_parameters_takes_an_empty_object():
    def f() -> int:
        return 1

    schema = schema_of(f)
    assert accepts(schema, {})
    assert not accepts(schema, {"a": 1})


@pytest.mark.parametrize(
    "name", ["title", "properties", "items", "enum", "class_", "self", "default"]
)
def test_a_parameter_may_be_named_like_a_key_of_schemas(name):
    def f(a): ...

    space: dict[str, Any] = {}
    exec(f"def f({name}: dict[str, int], other: list[int] = []): ...", space)
    schema = schema_of(space["f"])
    assert list(schema["properties"]) == [name, "other"]
    assert accepts(schema, {name: {"a": 1}})
    assert not accepts(schema, {name: {"a": "b"}})
