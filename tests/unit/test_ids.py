"""Ids are opaque, sort by creation, and are checked at the door."""

from __future__ import annotations

import threading
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette import ids
from oubliette.errors import InvalidParameter

PREFIXES = (
    ids.PROJECT,
    ids.SESSION,
    ids.CONTAINER,
    ids.EXPLORATION,
    ids.TOKEN,
    ids.PRINCIPAL,
    ids.INSTANCE,
    ids.PROCESS,
)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_new_id_is_what_the_door_takes(prefix: str) -> None:
    value = ids.new_id(prefix)
    assert ids.check_id(value, prefix, "field") == value
    assert len(value) == len(prefix) + 27


def test_ids_sort_by_creation_even_within_a_millisecond() -> None:
    made = [ids.new_id(ids.SESSION) for _ in range(2000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_threads_never_get_the_same_id() -> None:
    made: list[list[str]] = [[] for _ in range(4)]

    def make(into: list[str]) -> None:
        into.extend(ids.new_id(ids.SESSION) for _ in range(500))

    threads = [threading.Thread(target=make, args=(each,)) for each in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert len({each for part in made for each in part}) == 2000


def test_a_clock_that_jumps_back_does_not_break_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ids.new_id(ids.SESSION)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert ids.new_id(ids.SESSION) > before


def test_new_ids_begin_after_those_that_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in another process, whose clock is right: that of the first was an hour ahead."""
    now = time.time_ns()
    monkeypatch.setattr(ids, "_last", 0)
    monkeypatch.setattr(time, "time_ns", lambda: now + 3_600 * 10**9)
    stored = ids.new_id(ids.SESSION)
    made = set[str]()
    for _ in range(2):  # two nodes, which do not know of each other
        monkeypatch.setattr(ids, "_last", 0)
        monkeypatch.setattr(time, "time_ns", lambda: now)
        ids.begin_after(None, stored)
        later = ids.new_id(ids.SESSION)
        assert stored < later < ids.new_id(ids.SESSION)
        made.add(later)
    assert len(made) == 2


@pytest.mark.parametrize("stored", ["", "gogol_x", "tok_" + "z" * 26, "here_" + "0" * 26])
def test_what_is_no_id_of_ours_moves_nothing(stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_last", 0)
    ids.begin_after(stored)
    assert ids.new_id(ids.TOKEN) < "tok_1"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "proj_",
        "proj_" + "0" * 25,
        "proj_" + "0" * 27,
        "proj_" + "u" * 26,
        "proj_" + "O" * 26,
        "PROJ_" + "0" * 26,
        "gogol_" + "0" * 26,
        " proj_" + "0" * 26,
        "proj_" + "0" * 26 + "\n",
        "proj_" + "0" * 24 + "/.",
        "proj_" + "٠" * 26,
    ],
)
def test_anything_else_is_refused_by_the_name_of_its_field(value: str) -> None:
    with pytest.raises(InvalidParameter, match="^the field: ") as refused:
        ids.check_id(value, ids.PROJECT, "the field")
    assert refused.value.field == "the field"


@given(st.text(max_size=40))
def test_what_passes_is_safe_in_a_path_and_a_line(text: str) -> None:
    for check in (
        lambda: ids.check_id(text, ids.PROJECT, "f"),
        lambda: ids.check_uuid(text, "f"),
        lambda: ids.check_caller_id(text),
        lambda: ids.check_tool_name(text),
    ):
        try:
            value = check()
        except InvalidParameter:
            continue
        assert value.isascii()
        assert value.isprintable()
        assert "/" not in value


def test_uuids_are_of_version_4_and_in_lower_case() -> None:
    value = ids.new_uuid()
    assert uuid.UUID(value).version == 4
    assert ids.check_uuid(value, "f") == value
    with pytest.raises(InvalidParameter):
        ids.check_uuid(value.upper(), "f")


@pytest.mark.parametrize("value", ["ant", "A-b_9", "x" * 64])
def test_names_of_callers(value: str) -> None:
    assert ids.check_caller_id(value) == value


@pytest.mark.parametrize(
    "value", ["", "x" * 65, "a b", "a.b", "ä", "oubliette", "Oubliette-x", "a\n"]
)
def test_names_that_no_caller_may_have(value: str) -> None:
    with pytest.raises(InvalidParameter):
        ids.check_caller_id(value)


def test_a_shown_value_is_short_and_quoted() -> None:
    assert ids.shown("a\nb") == r"'a\nb'"
    assert len(ids.shown("x" * 1000)) == 60


def test_a_derived_id_has_the_form_of_its_kind_and_is_that_of_its_texts_alone() -> None:
    value = ids.derived_id(ids.EXPLORATION, "alice", "night")
    assert ids.is_id(value, ids.EXPLORATION)
    assert value == ids.derived_id(ids.EXPLORATION, "alice", "night")
    others = [("alice", "nigh"), ("alicen", "ight"), ("", "alicenight"), ("alice", "night", "")]
    assert value not in {ids.derived_id(ids.EXPLORATION, *parts) for parts in others}


@given(st.lists(st.text(), max_size=3), st.lists(st.text(), max_size=3))
def test_derived_ids_are_equal_for_equal_texts_only(one: list[str], other: list[str]) -> None:
    same = ids.derived_id(ids.EXPLORATION, *one) == ids.derived_id(ids.EXPLORATION, *other)
    assert same is (one == other)
