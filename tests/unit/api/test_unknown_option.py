"""Options that do not exist: the error names the option, and the hint what was probably meant."""

from __future__ import annotations

import inspect

import pytest

from oubliette.api._generated.spawner import Spawner
from oubliette.api.project import Project
from oubliette.api.unknown_option import ELSEWHERE, check_options
from oubliette.errors import InvalidParameter

KNOWN = [
    each.name
    for each in inspect.signature(Spawner.spawn).parameters.values()
    if each.kind is each.KEYWORD_ONLY
]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("modle", "did you mean model?"),
        ("max_turns", "project.tree(max_turn_steps=…)"),
        ("output_type", "returns=TYPE"),
        ("stream", "events()"),
        ("system_prompt", "in the prompt"),
        ("qqqq", "the options are agent, "),
    ],
)
def test_the_hint_has_what_was_meant(name: str, hint: str) -> None:
    with pytest.raises(InvalidParameter, match=f"^{name}: there is no option") as refused:
        check_options(["model", name], KNOWN)
    assert refused.value.field == name
    assert refused.value.hint is not None
    assert hint in refused.value.hint


def test_options_that_exist_are_no_error() -> None:
    check_options(KNOWN, KNOWN)


def test_no_name_that_is_explained_is_an_option_itself() -> None:
    assert not ELSEWHERE.keys() & set(KNOWN)


def test_each_limit_of_a_tree_is_explained() -> None:
    assert set(inspect.signature(Project.tree).parameters) - {"self"} <= ELSEWHERE.keys()
