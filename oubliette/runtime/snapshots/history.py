"""SnapshotHistory, a reader of the snapshots of one workspace: turns, and their differences.

It only reads, and only commits, which never change. Nothing in them is carried out: no filter, no
text conversion, no attribute of a file in the tree.

What runs git raises RuntimeFailure if git fails, and DeadlineExceeded if it takes too long.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Final, Literal

from oubliette.errors import DeadlineExceeded, InvalidParameter, NotFound, RuntimeFailure
from oubliette.runtime.snapshots.history_records import (
    DiffAnswer,
    FileChange,
    ForkAnswer,
    LogAnswer,
    Losses,
    TurnChanges,
)
from oubliette.runtime.snapshots.ignored_files import IgnoredFiles
from oubliette.runtime.snapshots.ref_files import named_objects
from oubliette.runtime.snapshots.snapshot_names import (
    EMPTY_TREE,
    at_end,
    forked_at,
    named,
    range_of,
    start_of,
)
from oubliette.runtime.snapshots.workspace.tree_reader import NO_CONTENT
from oubliette.runtime.snapshots.workspace.tree_table import MANIFEST, without_content

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from oubliette.runtime.snapshots.git_program import GitProgram
    from oubliette.runtime.snapshots.history_records import DiffQuestion, ForkQuestion, LogQuestion
    from oubliette.runtime.snapshots.snapshot_names import DiffRange, NamedSnapshot

    ChangeSize = tuple[int, int | None, int | None]
    """Files, and the lines that came and went; None: it takes too long to count them."""

_REFS: Final = "refs/oubliette"
_REST: Final = "refs/oubliette-rest"
_FORMAT: Final = "%(objectname)|%(tree)|%(parent)|%(committerdate:unix)|%(refname)"
_DIFF: Final = ("diff-tree", "-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--full-index")
_STATUS: Final[dict[str, Literal["added", "deleted", "modified", "type_changed"]]] = {
    "A": "added",
    "D": "deleted",
    "M": "modified",
    "T": "type_changed",
}
_SIZES: Final = ("diff-tree", "-r", "--no-renames", "--no-ext-diff", "--no-textconv")
_COUNTS: Final = re.compile(r"(\d+) (file|insertion|deletion)")
COUNT_SECONDS: Final = 10.0
"""Time for counting lines. An agent may write files that take git minutes to compare."""
_SHOWN: Final = 20
"""Paths that are named, of what would be lost."""
_NOTHING: Final = "000000"
"""Mode of a file that is not there."""


class SnapshotHistory:
    """Reader of the snapshots of one workspace."""

    def __init__(self, repository: Path, git: GitProgram, seconds: float) -> None:
        self._repository = repository
        self._git = git
        self._seconds = seconds
        self._ignored = IgnoredFiles(repository, git, seconds)

    async def snapshots(self, session_id: str) -> list[NamedSnapshot]:
        """The snapshots of a session in the order of its turns."""
        below = f"{_REFS}/{session_id}/"
        text = await self._run("for-each-ref", f"--format={_FORMAT}", below)
        return named(text.decode().splitlines(), below)

    async def newest(self, snapshots: Sequence[NamedSnapshot]) -> str:
        """The commit of these snapshots that was taken last."""
        wanted = "".join(f"{each.commit}\n" for each in snapshots).encode()
        text = await self._run("rev-list", "--topo-order", "--max-count=1", "--stdin", given=wanted)
        return text.decode().strip()

    async def diff(self, question: DiffQuestion) -> DiffAnswer:
        """Return what has changed between two snapshots of a session.

        Raises:
            NotFound: there is no such snapshot.
            InvalidParameter: the question cannot be understood.
        """
        try:
            return await self._diff(question)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"the changes take git longer than {self._seconds:g} s to compare",
                hint="name some of the files with paths, or a turn",
            ) from error

    async def _diff(self, question: DiffQuestion) -> DiffAnswer:
        between = await self.between(question)
        if between is None:
            return DiffAnswer(between=None)
        changes: list[FileChange] = []
        if question.listed:
            changes = await self.changes(between, question.paths)
        patch, more = b"", False
        if question.patch:
            patch, more = await self._git.piece(
                self._repository,
                *_DIFF,
                "-p",
                *between.compared,
                *_selected(question.paths),
                offset=question.offset,
                most=question.most,
                seconds=self._seconds,
            )
        left_out: dict[str, str] = {}
        if question.between is None:  # of later pages it is known
            left_out = await self.left_out(question, between)
        return DiffAnswer(
            between=between,
            changes=tuple(changes),
            patch=patch,
            more=more,
            left_out=dict(list(left_out.items())[:_SHOWN]),
            left_out_count=len(left_out),
        )

    async def log(self, question: LogQuestion) -> LogAnswer:
        """Return the snapshots of a session, and the size of the changes of some turns."""
        snapshots = await self.snapshots(question.session_id)
        trees = {each.commit: each.tree for each in snapshots} | {EMPTY_TREE: EMPTY_TREE}
        pairs: dict[int, tuple[str, str]] = {}
        for turn in question.turns:
            with contextlib.suppress(NotFound):  # it runs, or was not stored
                old, _ = start_of(snapshots, turn)
                pairs[turn] = old, at_end(snapshots, turn).tree
        unknown = sorted({old for old, _ in pairs.values()} - trees.keys())
        if unknown:  # commits of other sessions
            names = await self._run("rev-parse", *(f"{each}^{{tree}}" for each in unknown))
            trees.update(zip(unknown, names.decode().split(), strict=True))
        compared = {turn: (trees[old], new) for turn, (old, new) in pairs.items()}
        counts = await self._counts(sorted(set(compared.values())))
        changes = (
            TurnChanges(turn=turn, files=found[0], insertions=found[1], deletions=found[2])
            for turn, found in ((turn, counts[pair]) for turn, pair in compared.items())
        )
        return LogAnswer(snapshots=tuple(snapshots), changes=tuple(changes))

    async def counts(self, old: str | None, new: str) -> ChangeSize:
        """The size of the changes between two commits.

        Args:
            old: Commit; None: an empty workspace.
            new: Commit.
        """
        return size_of(await change_lines(self._run, self._seconds, old or EMPTY_TREE, new))

    async def _counts(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], ChangeSize]:
        """The sizes of the changes between trees, all by one process."""
        asked = "".join(f"{old} {new}\n" for old, new in pairs)
        lines: dict[tuple[str, str], list[str]] = {pair: [] for pair in pairs}
        pair = ("", "")
        for line in await change_lines(self._run, self._seconds, "--stdin", given=asked.encode()):
            if line.startswith((" ", ":")):
                lines[pair].append(line)
            elif line:
                old, _, new = line.partition(" ")
                pair = old, new
        return {pair: size_of(found) for pair, found in lines.items()}

    async def fork_point(self, question: ForkQuestion) -> ForkAnswer:
        """The snapshot that a fork of a session begins with.

        Raises:
            NotFound: there is no such snapshot, or no turn has ended yet.
            InvalidParameter: the question cannot be understood.
        """
        snapshots = found = await self.snapshots(question.session_id)
        if not snapshots:
            return ForkAnswer(snapshot=None)
        running = question.before_turn
        if question.point is None and running is not None:
            found = [each for each in snapshots if each.turn < running]
            if not found:
                raise NotFound(
                    f"at_turn: no turn before turn {running}, which has not ended, has a snapshot",
                    hint="wait for its end, or name one: "
                    + ", ".join(each.name for each in snapshots[-_SHOWN:]),
                )
        return ForkAnswer(snapshot=forked_at(found, await self.newest(found), question.point))

    async def losses(self, commit: str, rest: str, after: str | None = None) -> Losses:
        """Return what a workspace has that its snapshot does not contain.

        Args:
            commit: Commit of its files.
            rest: Commit of what git's users do not want, which has the manifest.
            after: The same commit of a snapshot that is going to be restored: a large file that
                is the same there stays. None: everything is going to be removed.

        Raises:
            RuntimeFailure: git failed, or the snapshot is damaged.
            DeadlineExceeded: it takes too long.
        """
        now = await self._manifest(rest)
        then = {} if after is None else (await self._manifest(after))["large"]
        lost = _large(now, then)
        empty = set(NO_CONTENT.values())
        lost |= {path: why for path, why in now["left_out"].items() if why not in empty}
        tree = await self._run("rev-parse", f"{commit}^{{tree}}")
        shown = dict(list(lost.items())[:_SHOWN])
        return Losses(
            tree=tree.decode().strip(),
            count=len(lost),
            shown={name.encode("utf-8", "replace").decode(): why for name, why in shown.items()},
        )

    async def named_objects(self, rest: str) -> tuple[str, ...] | None:
        """Return the objects that a workspace's repository names; None: that is not known."""
        return await named_objects(self._git, self._repository, rest, self._seconds)

    async def _manifest(self, rest: str) -> dict[str, dict[str, Any]]:
        text = await self._run("cat-file", "blob", f"{rest}:{MANIFEST.decode()}")
        try:
            return without_content(text)  # which has names that are no UTF-8
        except ValueError as error:
            raise RuntimeFailure(f"the manifest of a snapshot is damaged: {error}") from error

    async def between(self, question: DiffQuestion) -> DiffRange | None:
        """Return the two states that a question means; None: the session has no snapshot.

        Ignored files that are not wanted do not differ in what it compares.

        Raises:
            NotFound: there is no such snapshot.
            InvalidParameter: the question cannot be understood.
        """
        between = question.between
        if between is None:
            between = await self._range(question)
        if between is None or question.ignored:
            return between
        return await self._ignored.hidden(between, _selected(question.paths))

    async def _range(self, question: DiffQuestion) -> DiffRange | None:
        snapshots = await self.snapshots(question.session_id)
        if not snapshots:
            return None
        return range_of(
            snapshots,
            await self.newest(snapshots),
            turn=question.turn,
            from_turn=question.from_turn,
            to_turn=question.to_turn,
        )

    def patch_command(self, between: DiffRange, paths: Sequence[str]) -> tuple[str, ...]:
        """The arguments with which git writes a patch that `git apply` understands."""
        return *_DIFF, "--binary", *between.compared, *_selected(paths)

    async def left_out(self, question: DiffQuestion, between: DiffRange) -> dict[str, str]:
        """The files that came between two states, but whose content no snapshot has.

        Raises:
            RuntimeFailure: git failed, or a snapshot is damaged.
            DeadlineExceeded: it takes too long.
        """
        rest = f"{_REST}/{question.session_id}"
        now = await self._manifest(f"{rest}/{between.new_name}")
        then = dict[str, Any]()
        if between.old_name is not None:
            then = (await self._manifest(f"{rest}/{between.old_name}"))["large"]
        wanted = tuple(f"{path.rstrip('/')}/" for path in question.paths) or ("",)
        found = {
            path: why for path, why in _large(now, then).items() if f"{path}/".startswith(wanted)
        }
        if not question.ignored:
            for path in await self._ignored.among(between.new, [each.encode() for each in found]):
                del found[path.decode()]
        return found

    async def changes(self, between: DiffRange, paths: Sequence[str] = ()) -> list[FileChange]:
        """The files that differ between two states, in the order of their paths."""
        text = await self._run(
            *_DIFF, "-z", "--raw", "--numstat", *between.compared, *_selected(paths)
        )
        return list(_changes(text))

    async def _run(
        self, *arguments: str, given: bytes = b"", seconds: float | None = None
    ) -> bytes:
        seconds = self._seconds if seconds is None else seconds
        return await self._git.run(self._repository, *arguments, given=given, seconds=seconds)


async def change_lines(
    run: Callable[..., Awaitable[bytes]], seconds: float, *compared: str, given: bytes = b""
) -> list[str]:
    """Return a line of counts for each comparison, or one for each file if that takes too long.

    Args:
        run: Runs git, with the arguments `given` and `seconds`.
        seconds: Time for listing the files.
        compared: What is compared.
        given: The same on standard input.

    Raises:
        DeadlineExceeded: even listing takes too long.
    """
    try:
        text = await run(*_SIZES, "--shortstat", *compared, given=given, seconds=COUNT_SECONDS)
    except DeadlineExceeded:
        text = await run(*_SIZES, "--raw", *compared, given=given, seconds=seconds)
    return text.decode().splitlines()


def size_of(lines: Sequence[str]) -> ChangeSize:
    """The size that is in the lines of git about one comparison."""
    if any(line.startswith(":") for line in lines):
        return len(lines), None, None
    found = {kind: int(count) for line in lines for count, kind in _COUNTS.findall(line)}
    return found.get("file", 0), found.get("insertion", 0), found.get("deletion", 0)


def _large(now: dict[str, dict[str, Any]], then: dict[str, Any]) -> dict[str, str]:
    """Return the large files of a manifest that another one has not, or not like that."""
    return {
        path.encode("utf-8", "replace").decode(): (
            f"{each[0]} bytes, of which snapshots have the SHA-256 alone"
        )
        for path, each in now["large"].items()
        if then.get(path) != each
    }


def _selected(paths: Sequence[str]) -> tuple[str, ...]:
    for path in paths:
        if path.startswith("/") or ".." in path.split("/"):
            raise InvalidParameter(
                "paths: give paths relative to the workspace, without ..", field="paths"
            )
    return ("--", *(path.rstrip("/") for path in paths)) if paths else ()


def _changes(listing: bytes) -> Iterator[FileChange]:
    """Read the output of `git diff-tree -z --raw --numstat`: all of the one, then the other."""
    parts = listing.split(b"\0")[:-1]
    raw: list[tuple[str, str, str, str, str, bytes]] = []
    place = 0
    while place < len(parts) and parts[place].startswith(b":"):
        old_mode, new_mode, old, new, status = parts[place][1:].decode().split(" ")
        raw.append((old_mode, new_mode, old, new, status, parts[place + 1]))
        place += 2
    for (old_mode, new_mode, old, new, status, path), counts in zip(
        raw, parts[place:], strict=True
    ):
        came, went, _ = counts.split(b"\t", 2)
        yield FileChange(
            path=path.decode(errors="backslashreplace"),
            status=_STATUS[status[0]],
            insertions=None if came == b"-" else int(came),
            deletions=None if went == b"-" else int(went),
            old_mode=None if old_mode == _NOTHING else old_mode,
            new_mode=None if new_mode == _NOTHING else new_mode,
            old_blob="" if old_mode == _NOTHING else old,
            new_blob="" if new_mode == _NOTHING else new,
        )
