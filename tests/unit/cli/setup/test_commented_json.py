"""A value in a JSON file with comments is changed, and every other character stays."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.cli.setup.commented_json import parsed, with_value, without
from oubliette.errors import ConfigError

COMMENTED = """\
// mine
{
    "theme": "dark", // as at night
    "mcp": {
        /* the old one */
        "other": {"url": "http://a//b", "on": true}, // {not, a: part}
        "last": [1, 2,],   // of it
        // end
    },
}
"""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "text",
    [
        COMMENTED,
        '{"a": 1}',
        "{}",
        '{"mcp": {}}',
        '{\n  "mcp": {\n    "a": 1 // x\n  } // y\n}\n',
        '{\n\t"mcp": {\n\t\t"a": {}\n\t}\n}',
        '\ufeff{"mcp": {"b": 1,},}',
        '{"mcp": {/* nothing */}}',
    ],
)
def test_an_entry_goes_in_and_comes_out_again(text: str) -> None:
    entry = {"url": "http://x", "headers": {"A": "b"}}
    changed = with_value(text, ("mcp", "ours"), entry)
    tree = parsed(text)
    tree.setdefault("mcp", {})["ours"] = entry
    assert parsed(changed) == tree
    again = without(changed, ("mcp", "ours"))
    tree["mcp"].pop("ours")
    assert parsed(again) == tree
    if parsed(text).get("mcp"):
        assert "".join(again.split()) == "".join(text.split())


def test_comments_stay_where_they_are() -> None:
    changed = with_value(COMMENTED, ("mcp", "ours"), {"a": 1})
    assert changed == COMMENTED.replace(
        "// end\n", '// end\n        "ours": {\n            "a": 1\n        },\n'
    )
    assert without(changed, ("mcp", "ours")) == COMMENTED


def test_a_value_is_replaced_in_its_place() -> None:
    changed = with_value(COMMENTED, ("mcp", "other"), 5)
    assert '"other": 5, // {not, a: part}' in changed
    assert without(COMMENTED, ("theme",)) == COMMENTED.replace('\n    "theme": "dark",', "")


def test_an_empty_file_gets_an_object() -> None:
    assert with_value(" \n", ("a", "b"), 1) == '{\n  "a": {\n    "b": 1\n  }\n}\n'
    assert parsed("") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "no object"),
        ("{", "line 1"),
        ('{"a": 1 "b": 2}', "line 1, column 9"),
        ('{"a": 1}\nx', "line 2"),
        ("{1: 2}", "line 1"),
        ("{'a': 2}", "line 1"),
        ("[" * 1000, "too many levels"),
        ('{"mcp": 5}', "mcp is no object"),
    ],
)
def test_a_text_that_cannot_be_changed_is_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_value(text, ("mcp", "ours"), 1)
    assert message in refused.value.message
    assert "editor" in (refused.value.hint or "")


@given(
    st.dictionaries(st.text(max_size=5), VALUES, max_size=4),
    VALUES,
    st.sampled_from([None, 1, "\t"]),
)
def test_any_object_is_read_as_json_reads_it_and_gets_an_entry(
    tree: dict[str, object], value: object, indent: int | str | None
) -> None:
    text = json.dumps(tree, indent=indent)
    assert parsed(text) == tree
    changed = with_value(text, ("ours",), value)
    assert json.loads(changed) == {**tree, "ours": value}
    tree.pop("ours", None)
    assert json.loads(without(changed, ("ours",))) == tree
