"""Names of a session's snapshots, and which two of them a question about turns means.

The name of a snapshot is the end of its ref: `3` is the end of turn 3, `3-start` its beginning,
`3-final` what the session left when it ended, `3-checkpoint-NAME` what was kept by request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.errors import InvalidParameter, NotFound
from oubliette.runtime.snapshots.snapshot_records import TAG, Moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EMPTY_TREE: Final = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_NAME: Final = re.compile(r"(?P<turn>\d{1,9})(?:-(?P<moment>[a-z]+)(?:-(?P<tag>.+))?)?")
_SHOWN: Final = 20
"""Names that an error lists."""


class NamedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a session, as the list of refs shows it."""

    name: str
    turn: int
    moment: Moment
    tag: str = ""
    """Name of a checkpoint."""
    commit: str
    tree: str
    parent: str | None = None
    """Commit before it, of whichever session; None: the workspace was new."""
    committed_at: float = 0.0
    """Second since 1970 at which the files were first stored so."""


class DiffRange(msgspec.Struct, frozen=True, kw_only=True):
    """Two states of a workspace."""

    old: str
    """Commit or tree."""
    new: str
    old_name: str | None = None
    """Name of the snapshot; None: none is named so, as what was there before the session."""
    new_name: str | None = None
    old_shown: str | None = None
    """Tree that is compared instead of `old`: with the ignored files of `new`. Kept by no ref."""
    ignored: int = 0
    """Number of ignored files that differ between `old` and `new`."""

    @property
    def compared(self) -> tuple[str, str]:
        """The two states whose differences are shown."""
        return self.old_shown or self.old, self.new


Point = int | str
"""A turn, which means its end, or the name of a snapshot."""


def named(lines: Iterable[str], prefix: str) -> list[NamedSnapshot]:
    """The snapshots of a session from lines of `git for-each-ref`, in the order of turns.

    Args:
        lines: Commit, tree, parents, time and ref, with `|` between them.
        prefix: Of the refs, up to the session.
    """
    found: list[NamedSnapshot] = []
    for line in lines:
        commit, tree, parents, when, ref = line.split("|", 4)
        name = ref.removeprefix(prefix)
        match = _NAME.fullmatch(name)
        moment = None if match is None else _MOMENTS.get(match["moment"] or "end")
        if match is None or moment is None:
            continue  # of a later release
        found.append(
            NamedSnapshot(
                name=name,
                turn=int(match["turn"]),
                moment=moment,
                tag=match["tag"] or "",
                commit=commit,
                tree=tree,
                parent=parents.split(" ")[0] or None,
                committed_at=float(when),
            )
        )
    return sorted(found, key=lambda each: (each.turn, _RANK[each.moment], each.tag))


_RANK: Final[dict[Moment, int]] = {
    "start": 0,
    "interrupt": 1,
    "end": 2,
    "checkpoint": 3,
    "branch": 4,
    "restore": 5,
    "restored": 6,
    "final": 7,
}
"""Moments in the order in which they usually come in a turn."""
_MOMENTS: Final[dict[str, Moment]] = {each: each for each in _RANK}


def before_session(snapshots: Sequence[NamedSnapshot]) -> tuple[str, str | None]:
    """Return the state before the session's first turn: commit or tree, and name if it has one."""
    first = snapshots[0]
    if first.moment == "start":
        return first.commit, first.name
    return first.parent or EMPTY_TREE, None  # it began with an empty or a stored workspace


def start_of(snapshots: Sequence[NamedSnapshot], turn: int) -> tuple[str, str | None]:
    """The state before a turn.

    Raises:
        NotFound: the turn has no snapshot.
    """
    for each in snapshots:
        if each.turn == turn and each.moment == "start":
            return each.commit, each.name
    earlier = [each for each in snapshots if each.turn < turn]
    if not any(each.turn == turn for each in snapshots):
        raise _no_snapshot(snapshots, turn)
    if not earlier:
        return before_session(snapshots)
    last = at_end(snapshots, earlier[-1].turn)
    return last.commit, last.name


def at_end(snapshots: Sequence[NamedSnapshot], turn: int) -> NamedSnapshot:
    """Return the snapshot at the end of a turn, or the one that shows the same.

    Raises:
        NotFound: there is none, as the turn never was or still runs.
    """
    of_turn = {each.moment: each for each in snapshots if each.turn == turn}
    # Where a server was killed at the end of a turn, the next look at the workspace has its files
    replaced = [each for each in snapshots if each.turn == turn and each.moment == "restore"][:1]
    following = [e for e in snapshots if e.turn > turn and e.moment == "start"][:1]
    for found in (of_turn.get("end"), *replaced, *following, of_turn.get("final")):
        if found is not None:
            return found
    raise _no_snapshot(snapshots, turn)


def at(snapshots: Sequence[NamedSnapshot], point: Point, field: str) -> NamedSnapshot:
    """Return the snapshot that a user names: by a turn, its own name, or that of a checkpoint.

    Raises:
        NotFound: there is none.
        InvalidParameter: it is no name of a snapshot, or that of several checkpoints.
    """
    if isinstance(point, int) or point.isdecimal():
        return at_end(snapshots, int(point))
    if _NAME.fullmatch(point) is None:
        if TAG.fullmatch(point):
            return checkpoint_named(snapshots, point, field)
        raise InvalidParameter(
            f"{field}: give a turn, the name of a checkpoint, or that of a snapshot as session_log"
            " shows it, such as 3-start",
            field=field,
        )
    for each in snapshots:
        if each.name == point:
            return each
    raise _no_snapshot(snapshots, point)


def checkpoint_named(snapshots: Sequence[NamedSnapshot], name: str, field: str) -> NamedSnapshot:
    """The checkpoint with a name that was given to it.

    Raises:
        NotFound: there is none.
        InvalidParameter: there are several.
    """
    known = [each for each in snapshots if each.moment == "checkpoint"]
    found = [each for each in known if each.tag == name]
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise InvalidParameter(
            f"{field}: several checkpoints have the name {name}",
            field=field,
            hint=f"give the whole name of one as a turn: {names}",
        )
    if not found:
        tags = ", ".join(each.tag for each in known[-_SHOWN:]) or "none"
        raise NotFound(f"{field}: there is no checkpoint {name}; the session has: {tags}")
    return found[0]


def forked_at(
    snapshots: Sequence[NamedSnapshot], newest: str, point: Point | None
) -> NamedSnapshot:
    """The snapshot that a fork begins with.

    Args:
        snapshots: At least one; without those of a turn that runs, if no point is named.
        newest: Commit of the last of them that was taken.
        point: What the user names; None: the newest.

    Raises:
        NotFound: there is none.
        InvalidParameter: it is no name of a snapshot.
    """
    if point is not None:
        return at(snapshots, point, "at_turn")
    return [each for each in snapshots if each.commit == newest][-1]


def last_turn(snapshot: NamedSnapshot) -> int:
    """Return the last turn whose work a snapshot may have; 0: none has begun."""
    return snapshot.turn - 1 if snapshot.moment == "start" else snapshot.turn


def range_of(
    snapshots: Sequence[NamedSnapshot],
    newest: str,
    *,
    turn: int | None,
    from_turn: Point | None,
    to_turn: Point | None,
) -> DiffRange:
    """The two states that a question means.

    Args:
        snapshots: All of the session, at least one.
        newest: Commit of the last of them that was taken.
        turn: The changes of this turn alone; then the others are None.
        from_turn: State before the changes; None or 0: before the session.
        to_turn: State after them; None: the newest.

    Raises:
        NotFound: there is no such snapshot.
        InvalidParameter: it is no name of a snapshot.
    """
    if turn is not None:
        old, old_name = start_of(snapshots, turn)
        last = at_end(snapshots, turn)
        return DiffRange(old=old, old_name=old_name, new=last.commit, new_name=last.name)
    if from_turn in {None, 0, "0"}:
        old, old_name = before_session(snapshots)
    else:
        assert from_turn is not None
        first = at(snapshots, from_turn, "from_turn")
        old, old_name = first.commit, first.name
    if to_turn is None:
        last = [each for each in snapshots if each.commit == newest][-1]
    else:
        last = at(snapshots, to_turn, "to_turn")
    return DiffRange(old=old, old_name=old_name, new=last.commit, new_name=last.name)


def _no_snapshot(snapshots: Sequence[NamedSnapshot], point: Point) -> NotFound:
    what = f"the end of turn {point}" if isinstance(point, int) else f"{point}"
    names = ", ".join(each.name for each in snapshots[-_SHOWN:])
    return NotFound(
        f"there is no snapshot of {what}; the session has: {names}",
        hint="a turn that runs has none of its end yet; checkpoint takes one now",
    )


def no_snapshots_of(session_id: str) -> NotFound:
    """The error for a session without any."""
    return NotFound(
        f"session {session_id} has no snapshots",
        hint="they are taken around turns while snapshots.mode is on; where one could not be, the"
        " session's log has the reason (snapshot_missing)",
    )
