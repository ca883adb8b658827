"""Arguments of agents are checked and converted; what is wrong is named with its path."""

from __future__ import annotations

import copy
import datetime as dt
import enum
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import jsonschema
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from oubliette.api.tools import ToolCallRefused
from oubliette.api.tools.arguments import Arguments
from oubliette.api.tools.signatures import signature_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    sku: str
    count: Annotated[int, Meta(ge=1)] = 1


class Place(TypedDict, total=False):
    street: str
    number: int


class Box(msgspec.Struct):
    lines: list[Line]
    size: tuple[int, int] = (1, 1)


class Person(pydantic.BaseModel):
    name: str
    age: Annotated[int, pydantic.Field(ge=0)] = 0


@dataclass
class Team:
    lead: Person


def order(
    number: Annotated[str, Meta(pattern="^[A-Z]-[0-9]+$", max_length=10)],
    lines: Annotated[list[Line], Meta(min_length=1)],
    *,
    colour: Colour = Colour.RED,
    mode: Literal["fast", "slow"] = "slow",
    place: Place | None = None,
    boxes: dict[str, Box] = {},
    limits: dict[int, float] = {},
    tags: set[str] = set(),
    when: dt.date | None = None,
    flag: bool = False,
    person: Person | None = None,
    people: list[Person] = [],
    team: Team | None = None,
    rest: Any = None,
): ...


ORDER = Arguments(signature_of(order, {}))
GOOD = {"number": "A-17", "lines": [{"sku": "x"}]}


def converted(**arguments: Any) -> dict[str, Any]:
    return ORDER.converted("order", {**GOOD, **arguments})


def refusal(arguments: Any) -> str:
    with pytest.raises(ToolCallRefused) as refused:
        ORDER.converted("order", arguments)
    text = str(refused.value)
    assert text.startswith("invalid arguments of order: ")
    return text.removeprefix("invalid arguments of order: ")


def test_values_become_what_the_function_is_annotated_with():
    assert converted() == {"number": "A-17", "lines": [Line("x", 1)]}
    assert converted(
        colour="blue",
        place={"street": "a"},
        boxes={"a": {"lines": [], "size": [1, 2]}},
        limits={"3": 1},
        tags=["a", "b"],
        when="2026-11-23",
        person={"name": "Ann"},
        people=[{"name": "Bob", "age": 3}],
        team={"lead": {"name": "Cy"}},
        rest=[1, None],
    ) == {
        "number": "A-17",
        "lines": [Line("x")],
        "colour": Colour.BLUE,
        "place": {"street": "a"},
        "boxes": {"a": Box([], (1, 2))},
        "limits": {3: 1.0},
        "tags": {"a", "b"},
        "when": dt.date(2026, 11, 23),
        "person": Person(name="Ann"),
        "people": [Person(name="Bob", age=3)],
        "team": Team(Person(name="Cy")),
        "rest": [1, None],
    }


def test_numbers_booleans_and_objects_that_came_as_text_are_converted():
    assert converted(flag="true", lines='[{"sku": "a", "count": "3"}]') == {
        "number": "A-17",
        "flag": True,
        "lines": [Line("a", 3)],
    }
    assert converted(person='{"name": "Ann"}')["person"] == Person(name="Ann")


def test_a_text_that_is_right_as_it_is_stays_text():
    def f(a: str, b: int | str, c: str | None, d: Any, e: int = 3): ...

    given = {"a": '{"x": 1}', "b": "3", "c": "null", "d": "[1]"}
    arguments = Arguments(signature_of(f, {}))
    assert arguments.converted("f", given) == given
    assert arguments.converted("f", {**given, "e": "4"}) == {**given, "e": 4}


def test_null_for_a_parameter_with_a_default_leaves_it_out():
    assert "mode" not in converted(mode=None)
    assert converted(place=None)["place"] is None


def test_what_an_agent_leaves_out_is_not_given_to_the_function():
    first: list[int] = []

    def f(a: list[int] = first): ...

    assert Arguments(signature_of(f, {})).converted("f", {}) == {}
    assert Arguments(signature_of(f, {})).converted("f", None) == {}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"number": 17}, "number: must be a string, not an integer"),
        ({"number": "17"}, "number: must match the regular expression '^[A-Z]-[0-9]+$'"),
        ({"number": "A-1234567890"}, "number: must have at most 10 characters"),
        ({"lines": []}, "lines: must have at least 1 entries"),
        ({"lines": ["x"]}, "lines[0]: must be an object, not a string"),
        ({"lines": [{"sku": "a"}, {"count": 2}]}, "lines[1].sku: is required"),
        ({"lines": [{"sku": "a", "count": 0}]}, "lines[0].count: must be at least 1"),
        ({"colour": "green"}, "colour: must be one of 'blue', 'red', not 'green'"),
        ({"mode": "slower"}, "mode: must be one of 'fast', 'slow', not 'slower'"),
        ({"place": {"number": "x"}}, "place.number: must be an integer, not a string"),
        ({"boxes": {"a": {"lines": 3}}}, "boxes.*.lines: must be an array, not an integer"),
        ({"limits": {"a": 3}}, "limits.*: must be an integer, not a string"),
        ({"when": "today"}, "when: invalid RFC3339 encoded date"),
        ({"flag": "perhaps"}, "flag: must be true or false, not a string"),
        ({"person": {"name": "a", "age": -1}}, "person.age: Input should be greater than"),
        ({"people": [{"name": "a"}, {"nam": 1}]}, "people[1].name: Field required"),
        ({"team": {"lead": {"name": 3}}}, "team.lead.name: Input should be a valid string"),
        ({"strange": 1}, "'strange': unknown; the parameters are: number, lines, colour"),
    ],
)
def test_a_wrong_argument_is_named_with_its_path(wrong, text):
    assert refusal({**GOOD, **wrong}).startswith(text)


def test_all_that_are_missing_or_unknown_are_named_at_once():
    assert refusal({"nummer": 1}).startswith(
        "number: is required; lines: is required; 'nummer': unknown"
    )


@pytest.mark.parametrize("given", [[1], "text", 3])
def test_arguments_that_are_no_object_are_refused(given):
    assert refusal(given).startswith("arguments: must be an object")


def test_a_failed_attempt_to_mend_is_not_what_the_agent_is_shown():
    assert refusal({**GOOD, "lines": '[{"sku": 1}]'}) == "lines: must be an array, not a string"


def test_arguments_that_are_nested_very_deeply_are_refused():
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ToolCallRefused):
        ORDER.converted("order", {**GOOD, "lines": value})


# ---------------------------------------------------------------- properties
LINES = st.builds(
    lambda sku, count: {"sku": sku} if count is None else {"sku": sku, "count": count},
    st.text(max_size=5),
    st.none() | st.integers(1, 99),
)
PEOPLE = st.fixed_dictionaries({"name": st.text(max_size=5)}, optional={"age": st.integers(0, 99)})
CALLS = st.fixed_dictionaries(
    {
        "number": st.from_regex("^[A-Z]-[0-9]{1,8}$", fullmatch=True).filter(str.isascii),
        "lines": st.lists(LINES, min_size=1, max_size=3),
    },
    optional={
        "colour": st.sampled_from(["red", "blue"]),
        "mode": st.sampled_from(["fast", "slow"]),
        "place": st.none()
        | st.fixed_dictionaries(
            {}, optional={"street": st.text(max_size=3), "number": st.integers(0, 9)}
        ),
        "boxes": st.dictionaries(
            st.text("abc", max_size=3),
            st.fixed_dictionaries(
                {"lines": st.lists(LINES, max_size=2)},
                optional={"size": st.lists(st.integers(0, 9), min_size=2, max_size=2)},
            ),
            max_size=2,
        ),
        "limits": st.dictionaries(st.integers(-9, 9).map(str), st.floats(-9, 9), max_size=2),
        "tags": st.lists(st.text(max_size=3), max_size=3, unique=True),
        "when": st.none() | st.dates().map(str),
        "flag": st.booleans(),
        "person": st.none() | PEOPLE,
        "people": st.lists(PEOPLE, max_size=2),
        "team": st.none() | st.fixed_dictionaries({"lead": PEOPLE}),
        "rest": st.recursive(
            st.none() | st.booleans() | st.text(max_size=3), st.lists, max_leaves=4
        ),
    },
)


@given(CALLS)
def test_what_the_schema_allows_is_converted_and_means_the_same(arguments):
    before = copy.deepcopy(arguments)
    jsonschema.validate(arguments, ORDER.schema)
    found = ORDER.converted("order", arguments)
    assert arguments == before
    assert found.keys() == arguments.keys()
    again = msgspec.to_builtins(
        found, str_keys=True, enc_hook=lambda model: model.model_dump(mode="json")
    )
    assert ORDER.converted("order", msgspec.json.decode(msgspec.json.encode(again))) == found


def paths(value: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Each place of a value: its path, its container and the key in that."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, part in pairs:
        step = f"[{key}]" if isinstance(key, int) else f".{key}"
        found.append(((path + step).lstrip("."), value, key))
        if isinstance(part, dict | list):
            found += paths(part, path + step)
    return found


@given(CALLS, st.data())
def test_a_value_of_a_wrong_type_is_named_where_it_is(arguments, data):
    arguments.pop("rest", None)  # of which nothing is wrong
    places = paths(arguments)
    path, container, key = data.draw(st.sampled_from(places))
    top = path.partition(".")[0].partition("[")[0]
    old = container[key]
    container[key] = [[]] if isinstance(old, dict | str) or old is None else {"": None}
    if jsonschema.Draft202012Validator(ORDER.schema).is_valid(arguments):
        return  # a type that takes it, such as one of free keys
    text = refusal(arguments)
    if top in {"boxes", "limits"}:  # keys of mappings are not shown
        assert text.startswith(top)
    else:
        assert text.startswith(path)


@given(CALLS, st.sampled_from(["number", "lines"]))
def test_a_required_parameter_that_is_missing_is_named(arguments, name):
    del arguments[name]
    assert refusal(arguments) == f"{name}: is required"


@given(
    CALLS,
    st.text(min_size=1, max_size=8).filter(lambda name: name not in ORDER.schema["properties"]),
)
def test_an_argument_that_is_unknown_is_named(arguments, name):
    arguments[name] = 1
    assert refusal(arguments).startswith(f"{name!r}: unknown")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(list(GOOD)) | st.text(), inner)
        ),
        max_leaves=12,
    )
)
def test_whatever_is_given_is_converted_or_refused(given_value):
    try:
        ORDER.converted("order", given_value)
    except ToolCallRefused as refused:
        assert "invalid arguments of order" in str(refused)
