"""Snapshots are found by turns, by their own names, and by those of checkpoints."""

from __future__ import annotations

import pytest

from oubliette.errors import InvalidParameter, NotFound
from oubliette.runtime.snapshots.snapshot_names import (
    NamedSnapshot,
    at,
    forked_at,
    last_turn,
    named,
)


def snapshots(*names: str) -> list[NamedSnapshot]:
    lines = (f"c{place}|t{place}||{place}|refs/{name}" for place, name in enumerate(names))
    return named(lines, "refs/")


def test_a_plain_name_finds_its_checkpoint() -> None:
    known = snapshots("1", "1-checkpoint-good", "2-restore-good", "2")
    assert at(known, "good", "turn").name == "1-checkpoint-good"
    assert at(known, "2", "turn").name == "2"
    assert at(known, "2-restore-good", "turn").name == "2-restore-good"


def test_a_name_of_several_checkpoints_is_refused_with_their_whole_names() -> None:
    known = snapshots("1-checkpoint-good", "2-checkpoint-good")
    with pytest.raises(InvalidParameter, match="several checkpoints have the name good") as refused:
        at(known, "good", "turn")
    assert "1-checkpoint-good, 2-checkpoint-good" in (refused.value.hint or "")


def test_what_is_no_name_is_refused_and_what_is_unknown_not_found() -> None:
    known = snapshots("1", "1-checkpoint-good")
    with pytest.raises(NotFound, match="no checkpoint bad; the session has: good"):
        at(known, "bad", "turn")
    with pytest.raises(InvalidParameter, match="give a turn, the name of a checkpoint"):
        at(known, "../1", "turn")


def test_a_fork_begins_with_the_newest_or_with_what_is_named() -> None:
    known = snapshots("1-start", "1", "2-start")
    assert forked_at(known, "c1", None).name == "1"
    assert forked_at(known, "c1", "1-start").name == "1-start"
    assert [last_turn(each) for each in known] == [0, 1, 1]
