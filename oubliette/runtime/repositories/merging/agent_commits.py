"""AgentCommits, what an agent has committed itself, and one commit for what it has not committed.

Its commits stay what they are: author, message, parents. They are in the project's repository
already, checked by git. They come as they are, with files that `.gitignore` names.

What runs git raises RuntimeFailure if git fails, and DeadlineExceeded if it takes too long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from oubliette.errors import Conflict, LimitExceeded
from oubliette.runtime.repositories.merging.lfs_files import written_content
from oubliette.runtime.repositories.merging.session_commits import SessionCommit, trailers
from oubliette.runtime.repositories.merging.state_trees import StateTrees, for_attributes

if TYPE_CHECKING:
    from oubliette.runtime.repositories.merging.merge_records import MergeRequest
    from oubliette.runtime.repositories.merging.merge_room import MergeRoom
    from oubliette.runtime.repositories.merging.state_trees import StateTree

MAX_COMMITS: Final = 10_000
_FORMAT: Final = "%H%x00%P%x00%an%x00%ae%x00%at%x00%B"
_FIELDS: Final = 6
LISTED: Final = ("log", "-z", "--topo-order", f"--format={_FORMAT}")
"""Command of git that lists commits, which `commits_in` reads."""


class AgentCommit(NamedTuple):
    """A commit that an agent has made."""

    commit: str
    parents: tuple[str, ...]
    author: str
    email: str
    written: float
    message: str


class AgentCommits:
    """The commits of one workspace that its agent has made since the base.

    Args:
        room: Gets the commit of what is not committed.
        base: Commit that the workspace was made of.
        head: Commit that is HEAD in the workspace.
    """

    def __init__(self, room: MergeRoom, base: str, head: str) -> None:
        self._room = room
        self._base = base
        self._head = head
        self.commits: list[SessionCommit] = []
        """Oldest first."""
        self.last: StateTree | None = None
        """The tree of the last state, once they are made."""

    async def make(self, request: MergeRequest, tip: str) -> None:
        """Find the commits, and make the one of what is not committed.

        Raises:
            Conflict: they cannot be merged in this way; contains the remedy.
            LimitExceeded: there are too many.
        """
        del tip
        state = request.states.states[-1]
        found = await agent_commits(self._room, self._base, self._head)
        if request.strategy == "rebase" and any(len(each.parents) > 1 for each in found):
            raise Conflict(
                "the agent has merged other commits, so its own are no line that can be rebased",
                hint='choose strategy="merge"',
            )
        await self._check_lfs()
        for each in found:
            of_commit = replace(state, committed_at=each.written)
            name = f"commit {each.commit[:12]}"
            parent = each.parents[0] if each.parents else self._base
            self.commits.append(
                SessionCommit(
                    of_commit, each.commit, parent, each.message, "", name,
                    author=(each.author, each.email),
                )
            )  # fmt: skip
        self.last = await StateTrees(self._room, self._head).tree_of(state)
        if self.last.tree == await self._room.line("rev-parse", f"{self._head}^{{tree}}"):
            return
        turn = request.states.name or str(state.turn)
        subject = f"What session {request.session_id} had not committed"
        message = f"{subject}\n\n{trailers(request.session_id, turn, state.commit)}"
        commit = await self._room.commit(
            self.last.tree, (self._head,), message,
            written=state.committed_at, made=state.committed_at,
        )  # fmt: skip
        what = "what is not committed"
        self.commits.append(SessionCommit(state, commit, self._head, message, state.commit, what))

    async def had(self, tip: str) -> int:
        """The number of the first commits that a branch has already."""
        if not self.commits:
            return 0
        last = self.commits[-1].commit
        lacking = (await self._room.run("rev-list", last, "--not", tip)).decode().split()
        missing = set(lacking)
        count = 0
        for each in self.commits:
            if each.commit in missing:
                break
            count += 1
        return count

    async def _check_lfs(self) -> None:
        """Refuse content that was committed in the place of a pointer of Git LFS."""
        trees = StateTrees(self._room, self._base)
        changes = await trees.changes_to(self._head)
        base = await trees.base_entries()
        kept = await written_content(self._room, *for_attributes(base, changes))
        if kept:
            names = ", ".join(sorted(each.decode(errors="backslashreplace") for each in kept)[:5])
            raise Conflict(
                f"the agent has committed content in the place of pointers of Git LFS: {names}",
                hint='use commits="turns", which leaves these files as they were',
            )


async def agent_commits(room: MergeRoom, base: str, head: str) -> list[AgentCommit]:
    """The commits that `head` has and `base` has not, oldest first.

    Raises:
        LimitExceeded: there are too many.
    """
    count = int(await room.line("rev-list", "--count", head, "--not", base))
    if count > MAX_COMMITS:
        raise LimitExceeded(
            f"the agent's branch has {count} commits of its own, of at most {MAX_COMMITS}",
            hint='use commits="turns", which takes the files',
        )
    output = await room.run(*LISTED, "--reverse", head, "--not", base)
    return commits_in(output)


def commits_in(output: bytes) -> list[AgentCommit]:
    """Read the output of `git log -z` with the format of this module."""
    parts = output.decode(errors="replace").split("\0")
    found: list[AgentCommit] = []
    for place in range(0, len(parts) - _FIELDS + 1, _FIELDS):
        name, parents, author, email, written, message = parts[place : place + _FIELDS]
        found.append(
            AgentCommit(name, tuple(parents.split()), author, email, float(written or 0), message)
        )
    return found
