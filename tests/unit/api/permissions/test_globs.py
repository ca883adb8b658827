"""Globs of rules, over names, paths, addresses and commands."""

from __future__ import annotations

import re
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.api.permissions.globs import (
    below,
    inside,
    matches_address,
    matches_name,
    matches_path,
    matches_text,
)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("src/**", "src/a.py", True),
        ("src/**", "src/a/b/c.py", True),
        ("src/**", "src/.env", True),
        ("src/**", "src", False),
        ("src/**", "other/src/a.py", False),
        ("src/*", "src/a.py", True),
        ("src/*", "src/a/b.py", False),
        ("*.py", "a.py", True),
        ("*.py", "src/a.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "src/deep/a.py", True),
        ("**", "a/b", True),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**/b", "a/x/y/c", False),
        ("**/a/**/b*", "x/a/y/a/z/bc", True),
        ("**/**/b", "x/b", True),
        ("./src/*", "src/a", True),
        ("src/?.py", "src/a.py", True),
        ("src/?.py", "src//.py", False),
        ("src/[a].py", "src/a.py", False),
        ("/etc/**", "/etc/passwd", True),
        ("/etc/**", "etc/passwd", False),
        ("/**", "/etc/passwd", True),
        ("src/***", "src/a", True),
    ],
)
def test_a_star_stays_in_its_part_of_a_path_and_two_cross_them(
    pattern: str, path: str, expected: bool  # noqa: FBT001 (of a table)
) -> None:  # fmt: skip
    assert matches_path(pattern, path) is expected


@pytest.mark.parametrize(
    ("pattern", "address", "expected"),
    [
        ("docs.python.org/*", "https://docs.python.org/3/", True),
        ("docs.python.org", "https://docs.python.org/3/", True),
        ("docs.python.org", "HTTPS://DOCS.python.org", True),
        ("docs.python.org/3/*", "https://docs.python.org/2/", False),
        ("https://*.python.org", "https://docs.python.org/", True),
        ("https://*.python.org", "http://docs.python.org/", False),
        ("https://*.python.org/*", "https://evil.example/x.python.org/", False),
        ("https://*.python.org", "https://evil.example?x.python.org", False),
        ("docs.python.org", "https://docs.python.org@evil.example/", False),
        ("docs.python.org", "https://docs.python.org\\@evil.example/", False),
        ("docs.python.org", "ftp://docs.python.org/", False),
        ("*", "https://anything.example/at/all", True),
        ("*", "not an address", False),
    ],
)
def test_a_star_stays_in_the_host_of_an_address(
    pattern: str, address: str, expected: bool  # noqa: FBT001 (of a table)
) -> None:  # fmt: skip
    assert matches_address(pattern, address) is expected


def test_names_are_matched_in_any_case_and_commands_as_they_are() -> None:
    assert matches_name("Web*", "webFetch")
    assert not matches_text("git *", "Git status")
    assert matches_text("git *", "git log\nx")
    assert not matches_text("a.c", "abc")


PATTERN: Final = st.text("ab*?/.", max_size=8)


@given(PATTERN, st.text("ab/.", max_size=10))
def test_a_text_is_matched_as_by_the_plain_expression(pattern: str, text: str) -> None:
    plain = "".join({"*": ".*", "?": "."}.get(each, re.escape(each)) for each in pattern)
    assert matches_text(pattern, text) == bool(re.fullmatch(plain, text, re.DOTALL))


def plain_path(parts: list[str], steps: list[str]) -> bool:
    """Whether the parts of a pattern match those of a path, tried one by one."""
    if not parts:
        return not steps
    if parts[0] == "**":
        least = 1 if len(parts) == 1 else 0
        return any(plain_path(parts[1:], steps[n:]) for n in range(least, len(steps) + 1))
    wanted = "".join({"*": ".*", "?": "."}.get(each, re.escape(each)) for each in parts[0])
    return bool(steps and re.fullmatch(wanted, steps[0])) and plain_path(parts[1:], steps[1:])


@given(
    st.lists(st.sampled_from(["a", "b", "*", "**", "a*", "?", "a*b"]), min_size=1, max_size=5),
    st.lists(st.sampled_from(["a", "b", "ab", "aab"]), min_size=1, max_size=6),
)
def test_a_path_is_matched_as_part_by_part(parts: list[str], steps: list[str]) -> None:
    # Two open ends in a row are one: the first may be empty, the last has at least one part.
    assert matches_path("/".join(parts), "/".join(steps)) == plain_path(parts, steps)


@pytest.mark.parametrize(
    ("path", "workspace", "expected"),
    [
        ("src/a", "/w", "/w/src/a"),
        ("./src//a/.", "/w/", "/w/src/a"),
        ("/etc/x", "/w", "/etc/x"),
        ("//etc/x", "/w", "/etc/x"),
        ("file:///w/a", "/w", "/w/a"),
        ("a", "", None),
        ("", "/w", None),
        ("../a", "/w", None),
        ("a/..", "/w", None),
        ("{a,../b}", "/w", None),
        ("{..,b}/x", "/w", None),
        ("~/a", "/w", None),
        ("$HOME/a", "/w", None),
        ("a\x00b", "/w", None),
        ("a\nb", "/w", None),
        ("a\\b", "/w", None),
        ("https://x/a", "/w", None),
    ],
)
def test_a_path_that_may_lead_elsewhere_is_none(
    path: str, workspace: str, expected: str | None
) -> None:
    assert inside(path, workspace) == expected


def test_a_path_below_the_workspace_is_relative_to_it() -> None:
    assert below("/w/a/b", "/w/") == "a/b"
    assert below("/w", "/w") is None
    assert below("/wide/a", "/w") is None
    assert below("/a", "/") == "a"
    assert below("/a", "") is None
