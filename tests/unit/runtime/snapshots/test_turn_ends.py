"""Which snapshot has the files of the end of a turn."""

from __future__ import annotations

import pytest

from oubliette.errors import NotFound
from oubliette.runtime.snapshots.snapshot_names import NamedSnapshot, at_end, named

BELOW = "refs/oubliette/ses_1/"


def snapshots(*names: str) -> list[NamedSnapshot]:
    return named((f"{name}-commit|tree||1|{BELOW}{name}" for name in names), BELOW)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("1", "1-restore-5", "2-start"), "1"),
        (("1-start", "1-restore-5", "1-restore-6", "1-restored-6", "2-start"), "1-restore-5"),
        (("1-start", "2-start", "2"), "2-start"),
        (("1-start", "1-final"), "1-final"),
    ],
)
def test_the_end_of_a_turn_is_what_was_stored_first_after_it(names, found) -> None:
    """A server that was killed there stores it at its next look, which may be before a restore."""
    assert at_end(snapshots(*names), 1).name == found


def test_a_turn_that_runs_has_no_end() -> None:
    with pytest.raises(NotFound, match="the end of turn 1"):
        at_end(snapshots("1-start", "1-interrupt"), 1)
