"""SessionCommits, a workspace's states as commits: one for each turn, on top of the base.

The same states always become the same commits. So a branch that has some of them already is merged
with what came later alone. Each commit names its snapshot in a trailer, by which it is also found
where its change came to a branch as another commit.

What runs git raises RuntimeFailure if git fails, and DeadlineExceeded if it takes too long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oubliette.runtime.repositories.merging.conflict_resolution import SNAPSHOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oubliette.runtime.repositories.merging.merge_records import MergeRequest
    from oubliette.runtime.repositories.merging.merge_room import MergeRoom
    from oubliette.runtime.repositories.merging.state_trees import StateTree, StateTrees
    from oubliette.runtime.snapshots.history_records import WorkspaceState

SESSION: Final = "Oubliette-Session"
TURN: Final = "Oubliette-Turn"
MAX_SUBJECT: Final = 72
_FOUND: Final = f"%(trailers:key={SNAPSHOT},valueonly,separator=%x2C)"


@dataclass(frozen=True, slots=True)
class SessionCommit:
    """A commit of what was changed in a workspace."""

    state: WorkspaceState
    commit: str
    parent: str
    message: str
    snapshots: str
    """Snapshots that it has: its own, and the one whose conflicts it resolves."""
    turn: str
    """Name of the turn, for people."""
    author: tuple[str, str] | None = None
    """Name and address of who made it; None: Oubliette."""


class SessionCommits:
    """The commits of one workspace, up to a state.

    Args:
        room: Gets the commits.
        trees: Makes trees of states.
        base: Commit that the workspace was made of.
        conflicted: Snapshot whose conflicts are resolved in the workspace; None: of none.
    """

    def __init__(
        self, room: MergeRoom, trees: StateTrees, base: str, conflicted: str | None = None
    ) -> None:
        self._conflicted = conflicted
        self._room = room
        self._trees = trees
        self._base = base
        self.commits: list[SessionCommit] = []
        """Oldest first; states that have changed nothing have none."""
        self.last: StateTree | None = None
        """The tree of the last state, once they are made."""

    async def make(self, request: MergeRequest, tip: str) -> None:
        """Make the commits.

        Args:
            request: Has the states, and the subjects of turns.
            tip: Commit of the branch: states that it has are commits, too.
        """
        subjects = {(session_id, turn): text for session_id, turn, text in request.subjects}
        parent = self._base
        before = await self._room.line("rev-parse", f"{parent}^{{tree}}")
        for state in await self._wanted(request.states.states, tip):
            made = self.last = await self._trees.tree_of(state)
            if made.tree == before:
                continue
            snapshots = ",".join(filter(None, (state.commit, self._conflicted)))
            subject = subjects.get((state.session_id, state.turn), "")
            message = _message(state, subject, snapshots)
            commit = await self._room.commit(
                made.tree,
                (parent,),
                message,
                written=state.committed_at,
                made=state.committed_at,
            )
            turn = _name(state)
            self.commits.append(SessionCommit(state, commit, parent, message, snapshots, turn))
            parent, before = commit, made.tree

    async def _wanted(self, states: Sequence[WorkspaceState], tip: str) -> list[WorkspaceState]:
        had = await snapshots_in(self._room, self._base, tip)
        return [
            each
            for place, each in enumerate(states, start=1)
            if each.moment == "end"
            or (place == 1 and each.moment == "start" and self._conflicted is None)
            or place == len(states)
            or each.commit in had
        ]

    async def had(self, tip: str) -> int:
        """The number of the commits whose changes a branch has already."""
        known = await snapshots_in(self._room, self._base, tip)
        places = [
            place for place, each in enumerate(self.commits, start=1) if each.state.commit in known
        ]
        return max(places, default=0)


async def snapshots_in(room: MergeRoom, base: str, tip: str) -> set[str]:
    """The snapshots that commits of a branch name which are not in the base."""
    output = await room.run("log", f"--format={_FOUND}", tip, "--not", base)
    return {each for line in output.decode().split() for each in line.split(",") if each}


def trailers(session_id: str, turn: str, snapshots: str) -> str:
    """The end of a message, which has the origin of a commit."""
    return f"{SESSION}: {session_id}\n{TURN}: {turn}\n{SNAPSHOT}: {snapshots}\n"


def subject_of(text: str) -> str:
    """Return the first line of a text as the subject of a commit; empty: it has none."""
    for line in text.splitlines():
        words = " ".join("".join(c if c.isprintable() else " " for c in line).split())
        if words:
            return words if len(words) <= MAX_SUBJECT else f"{words[: MAX_SUBJECT - 1]}…"
    return ""


def _name(state: WorkspaceState) -> str:
    if state.moment == "start":
        return "what was there before"
    return f"turn {state.turn}" + ("" if state.moment == "end" else f" ({state.moment})")


def _message(state: WorkspaceState, text: str, snapshots: str) -> str:
    if state.moment == "start":
        subject = f"What was there before session {state.session_id}"
        turn = "0"
    else:
        subject = subject_of(text) or f"Turn {state.turn} of session {state.session_id}"
        turn = str(state.turn) if state.moment == "end" else f"{state.turn}-{state.moment}"
    return f"{subject}\n\n{trailers(state.session_id, turn, snapshots)}"
