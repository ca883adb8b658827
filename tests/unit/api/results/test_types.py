"""Types of results: their schema, their values, and the types that are refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from oubliette.api.errors import BadResultType, ResultInvalid
from oubliette.api.results import result_type


class Verdict(msgspec.Struct):
    """A judgement."""

    guilty: bool
    why: str = ""


@dataclasses.dataclass
class Invoice:
    number: str
    cents: int


class Place(TypedDict):
    city: str


class Span(NamedTuple):
    first: int
    last: int


class Colour(enum.Enum):
    RED = "red"


class Order(pydantic.BaseModel):
    number: str
    amount: int = pydantic.Field(ge=1)


@dataclasses.dataclass
class Shipment:
    orders: list[Order]


class Plain:
    pass


class WithPlain(msgspec.Struct):
    plain: Plain


class Later(msgspec.Struct):
    missing: NotHere  # noqa: F821 (that is the test)  # pyright: ignore


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Verdict, '{"guilty": true}', Verdict(guilty=True)),
        (Invoice, '{"number": "A", "cents": 3}', Invoice("A", 3)),
        (Place, '{"city": "Rome"}', {"city": "Rome"}),
        (Span, "[1, 2]", Span(1, 2)),
        (Colour, '"red"', Colour.RED),
        (Literal["yes", "no"], '"yes"', "yes"),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, Verdict], '{"a": {"guilty": false}}', {"a": Verdict(guilty=False)}),
        (int | None, "null", None),
        (Verdict | str, '"none"', "none"),
        (bool, "true", True),
        (dt.date, '"2026-11-23"', dt.date(2026, 11, 23)),
        (Annotated[int, msgspec.Meta(ge=3)], "3", 3),
        (Any, '{"x": [1]}', {"x": [1]}),
        (Order, '{"number": "A", "amount": 3}', Order(number="A", amount=3)),
        (list[Order], '[{"number": "A", "amount": 3}]', [Order(number="A", amount=3)]),
        (Order | None, "null", None),
        (Shipment, '{"orders": [{"number": "A", "amount": 1}]}',
         Shipment([Order(number="A", amount=1)])),
    ],
)  # fmt: skip
def test_an_answer_becomes_a_value(kind: Any, text: str, value: Any) -> None:
    wanted = result_type(kind)
    assert wanted.decode(text) == value
    assert wanted.read(f"Here it is:\n```json\n{text}\n```\nDone.") == value
    msgspec.json.encode(wanted.schema)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (Verdict, '{"guilty": "yes"}', "Expected `bool`, got `str` - at `$.guilty`"),
        (Verdict, "{}", "missing required field `guilty`"),
        (list[Invoice], '[{"number": "A", "cents": "3"}]', "at `$[0].cents`"),
        (Order, '{"number": "A", "amount": 0}', "greater than or equal to 1 - at `$.amount`"),
        (list[Order], '[{"number": "A"}]', "Field required - at `$.0.amount`"),
    ],
)
def test_an_error_in_an_answer_is_named_with_its_place(kind: Any, text: str, reason: str) -> None:
    with pytest.raises(ResultInvalid) as caught:
        result_type(kind).read(text)
    assert reason in caught.value.reason
    assert caught.value.answer == text


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (object, "object"),
        (Plain, "Plain"),
        (list[Plain], "Plain"),
        (WithPlain, "Plain"),
        (Later, "NotHere"),
        (complex, "complex"),
        (Callable[[], int], "Callable"),
        (list[int] | list[str], "array-like"),
        ("Verdict", "'Verdict'"),
        (Verdict(guilty=True), "Verdict(guilty=True"),
        (None, "None"),
        (3, "3"),
    ],
)
def test_a_type_without_a_schema_is_refused_with_its_name_and_the_remedy(
    kind: Any, named: str
) -> None:
    with pytest.raises(BadResultType) as caught:
        result_type(kind)
    assert named in caught.value.message
    assert caught.value.hint is not None
    assert "a dataclass" in caught.value.hint


def test_the_last_valid_value_counts() -> None:
    wanted = result_type(Verdict)
    answer = 'An example: {"guilty": false}. It is {"guilty": true}. See {"x": 1} and [1].'
    assert wanted.read(answer) == Verdict(guilty=True)
    fenced = f'```json\n{{"guilty": false}}\n```\n{answer}'
    assert wanted.read(fenced) == Verdict(guilty=False)


def test_a_cut_off_answer_is_not_taken_for_the_example_before_it() -> None:
    with pytest.raises(ResultInvalid, match="malformed or incomplete"):
        result_type(Verdict).read('Like {"guilty": false}: {"guilty": true, "why": "beca')


def test_an_answer_without_json_is_named() -> None:
    with pytest.raises(ResultInvalid, match="the answer is no Verdict: there is no JSON in it"):
        result_type(Verdict).read("I do not know.")


def test_the_prompt_has_the_schema_and_ends_with_the_task() -> None:
    prompt = result_type(Verdict).prompt("Judge him.")
    assert prompt.endswith("Judge him.")
    assert '"guilty":{"type":"boolean"}' in prompt
    assert "A judgement." in prompt


def test_pydantic_is_not_imported_for_other_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pydantic")
    assert result_type(Invoice).decode('{"number": "A", "cents": 3}') == Invoice("A", 3)
    assert "pydantic" not in sys.modules
