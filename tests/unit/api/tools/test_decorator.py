"""`@tool` leaves the function as it is, and refuses what could not work."""

from __future__ import annotations

import functools
import math

import pytest

from oubliette.api.tools import BadTool, Call, tool, tool_table


def test_it_is_written_with_and_without_options():
    @tool
    def one(a: int) -> int:
        return a + 1

    @tool(name="zwei", description="Two.", durable=True, timeout=5)
    def two(a: int) -> int:
        """Not this."""
        return a + 2

    assert (one(1), two(1)) == (2, 3)
    table = tool_table([one, two])
    assert list(table) == ["one", "zwei"]
    assert table["zwei"].definition == {
        "name": "zwei",
        "description": "Two.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "durable": True,
    }
    assert table["zwei"].timeout == 5
    assert (table["one"].durable, table["one"].timeout) == (False, None)


def test_an_empty_description_is_one():
    @tool(description="")
    def one() -> None:
        """For readers."""

    assert tool_table([one])["one"].description == ""


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"name": "zwei drei"}, "A-Z"),
        ({"name": ""}, "1 to 128"),
        ({"name": "x" * 129}, "1 to 128"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": math.inf}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
    ],
)
def test_a_bad_option_is_refused_at_once(options, named):
    with pytest.raises(BadTool, match=named):
        tool(**options)


def test_a_class_or_a_name_cannot_be_marked():
    with pytest.raises(BadTool, match="Orders is a class"):

        @tool
        class Orders: ...

    with pytest.raises(BadTool, match="name='zwei'"):
        tool("zwei")
    with pytest.raises(BadTool, match="cannot be called"):
        tool(3)
    with pytest.raises(BadTool, match="takes no attributes"):
        tool(len)


def test_a_second_mark_with_other_options_is_refused_since_the_first_would_be_lost():
    @tool(name="a")
    def one(x: int) -> int:
        return x

    assert tool(name="a")(one) is one
    with pytest.raises(BadTool, match="one is marked already"):
        tool(name="b")(one)
    second = tool(name="b")(functools.partial(one))
    assert list(tool_table([one, second])) == ["a", "b"]


def test_a_mark_survives_a_decorator_with_wraps():
    def loud(function):
        @functools.wraps(function)
        def around(*args, **kwargs):
            return function(*args, **kwargs)

        return around

    @loud
    @tool(name="inner")
    def one(a: int, call: Call) -> int:
        return a

    assert tool_table([one])["inner"].input_schema["required"] == ["a"]


def test_the_error_says_what_to_do():
    with pytest.raises(BadTool) as refused:
        tool_table([lambda: 3])
    assert refused.value.code == "bad_tool"
    assert "lambda has no name" in str(refused.value)
    assert "oubliette.tool(name=" in str(refused.value)
    assert list(tool_table([tool(name="three")(lambda: 3)])) == ["three"]
