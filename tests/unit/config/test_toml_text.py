"""A value in the text of a TOML file is changed, and the rest stays as it was written."""

from __future__ import annotations

import tomllib

import pytest

from oubliette.config.toml_text import with_value, without
from oubliette.errors import ConfigError

TEXT = """\
# first
title = "a"

[one.two]   # of two
# before
x = 1   # of x

[three]
y = [ 1,
  2 ]
"""


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("title",), "b"),
        (("new",), 1),
        (("one", "two", "x"), 5),
        (("one", "two", "z"), True),
        (("one", "four", "x"), {"a": "b"}),
        (("three", "y"), ["a"]),
        (("five", "six", "seven"), 1.5),
        (("a b", "c.d"), "e"),
    ],
)
def test_one_value_changes_and_all_comments_stay(words: tuple[str, ...], value: object) -> None:
    changed = with_value(TEXT, words, value)
    tree = part = tomllib.loads(TEXT)
    for word in words[:-1]:
        part = part.setdefault(word, {})
    part[words[-1]] = value
    assert tomllib.loads(changed) == tree
    for comment in ("# first", "# of two", "# before", "# of x"):
        assert comment in changed


def test_what_was_set_can_be_taken_out_again() -> None:
    changed = with_value(TEXT, ("one", "new"), {"url": "http://a", "headers": {"A": "b"}})
    again = without(changed, ("one", "new"))
    assert tomllib.loads(again) == tomllib.loads(TEXT)
    assert "# of x" in again


@pytest.mark.parametrize(
    ("text", "words"), [("[a", ("a", "b")), ("a = 1", ("a", "b")), ("a = [1]", ("a", "b"))]
)
def test_a_text_that_cannot_be_changed_is_refused(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        with_value(text, words, 2)
    assert refused.value.hint == "change it in an editor"
