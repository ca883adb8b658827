"""JSON is found in answers with prose, fences, examples and footnotes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.api.results.extraction import candidates


def texts(answer: str) -> list[Any]:
    """The candidates of an answer as values; the problem of a malformed one."""
    return [
        json.loads(text) if problem is None else problem for text, problem in candidates(answer)
    ]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"a": 1}', [{"a": 1}]),
        (" 42 \n", [42]),
        ('It is {"a": {"b": [1]}}, I think.', [{"a": {"b": [1]}}]),
        ('For example {"a": 0}.\nSo {"a": 1}', [{"a": 1}, {"a": 0}]),
        ('```json\n{"a": 1}\n```\nSee [1].', [{"a": 1}, [1]]),
        ('```\n{"a": 0}\n```\nthen\n~~~json\n{"a": 1}\n~~~\n', [{"a": 1}, {"a": 0}]),
        ('````\n```\n{"a": 1}\n```\n````', [{"a": 1}]),
        ('```json\n// the verdict\n{"a": 1}\n```', [{"a": 1}]),
        ('  ```JSON\n  {"a": 1}\n  ```', [{"a": 1}]),
        ('```json\n{"a": "```"}\n```', [{"a": "```"}]),
        ('```json {"a": 1}```', [{"a": 1}]),
        ('```json\n{"a": 1}', [{"a": 1}]),
        ('{"a": "}{"} and more', [{"a": "}{"}]),
        ("The answer is:\n\n42", [42]),
        ('Yes.\n"guilty"', ["guilty"]),
        ("The answer is 42", []),
        ("Use {x} or [see below].", []),
        ("", []),
        ('```python\nx = {"a": y}\n```\nNo.', []),
        ("```\nls -l\n```\nno", []),
    ],
)
def test_the_likeliest_value_is_first(answer: str, expected: list[Any]) -> None:
    assert texts(answer) == expected


@pytest.mark.parametrize(
    "answer",
    [
        '{"a": 0} is an example. {"a": 1,}',
        '{"a": 0} is an example. {"a": 1, "b": [2',
        '```json\n{"a": 1, "b": {"a": 2}\n```',
        "[[1, 2], [3, 4],]",
        "[[1, 2], [3, 4]",
        '```json\n{"a": 1\n',
        '{"a": "unclosed',
    ],
)
def test_a_malformed_value_comes_before_its_parts_and_all_earlier_ones(answer: str) -> None:
    first = texts(answer)[0]
    assert isinstance(first, str)
    assert "malformed or incomplete" in first


def test_a_fence_that_should_be_json_and_is_not_is_a_problem() -> None:
    (problem,) = texts("```json\nnothing\n```")
    assert problem == "it is no JSON: Expecting value in line 1, column 1"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PROSE = st.text("ab .,:;!?()'\n", max_size=20)


@given(VALUES, PROSE, PROSE, st.sampled_from(["", "  "]), st.none() | st.integers(0, 3))
def test_a_value_is_found_in_a_fence_whatever_is_around_it(
    value: Any, before: str, after: str, margin: str, indent: int | None
) -> None:
    text = json.dumps(value, indent=indent)
    answer = f"{before}\n{margin}```json\n{text}\n{margin}```\n{after}"
    assert texts(answer)[0] == value


@given(st.dictionaries(st.text(), VALUES, min_size=1, max_size=3), PROSE, PROSE)
def test_an_object_is_found_in_prose(value: dict[str, Any], before: str, after: str) -> None:
    assert value in texts(f"{before} {json.dumps(value)} {after}")


@given(st.text('{}[]"\\:,`~1a\n ', max_size=60))
def test_no_text_is_an_error(answer: str) -> None:
    assert isinstance(texts(answer), list)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", ["[", "{", '{"a":', '["', "[{", "```\n", "{[1]", '"['])
def test_a_long_answer_of_brackets_takes_no_long_time(piece: str) -> None:
    assert isinstance(list(candidates(piece * 20_000)), list)
