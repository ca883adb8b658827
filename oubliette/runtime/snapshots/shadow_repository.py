"""ShadowRepository, the snapshots of one workspace.

It is a bare repository outside everything that a container sees. `refs/oubliette/<session>/<turn>`
is the workspace at the end of a turn, `…/<turn>-start` at its beginning, `…/<turn>-final` when the
session ended or the workspace was about to be deleted. Trees that are equal are one commit: a turn
that changed nothing has a ref to the commit that was there before it, so that each turn can be
restored by its own ref. `refs/oubliette-rest/…` has what git's users do not want (`names`).

Two methods of one repository must not run at a time; its owner sees to that.

What runs git raises RuntimeFailure if git fails, and DeadlineExceeded if it takes too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oubliette.errors import NotFound, RuntimeFailure
from oubliette.failpoints import failpoint
from oubliette.runtime.snapshots.copies import UNSENT
from oubliette.runtime.snapshots.exports import SnapshotExports, remove_old
from oubliette.runtime.snapshots.git_program import make_repository
from oubliette.runtime.snapshots.history import SnapshotHistory
from oubliette.runtime.snapshots.history_records import (
    DiffAnswer,
    ExportQuestion,
    ForkAnswer,
    ForkQuestion,
    LogAnswer,
    LogQuestion,
    PieceQuestion,
    StatesAnswer,
    StatesQuestion,
)
from oubliette.runtime.snapshots.ref_files import PACKED, refs_below, remove_locks
from oubliette.runtime.snapshots.snapshot_names import at_end, named, no_snapshots_of
from oubliette.runtime.snapshots.snapshot_records import (
    Restored,
    Snapshot,
    SnapshotLimits,
    StoredSnapshot,
    check_room,
)
from oubliette.runtime.snapshots.workspace.tree_reader import MAX_ENTRIES, Glance, glance
from oubliette.runtime.snapshots.workspace.tree_table import PARTS
from oubliette.runtime.snapshots.workspace_job import GRACE_SECONDS
from oubliette.runtime.snapshots.workspace_states import states_up_to

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.snapshots.git_program import GitProgram
    from oubliette.runtime.snapshots.history_records import HistoryAnswer, HistoryQuestion
    from oubliette.runtime.snapshots.snapshot_records import SnapshotCopy, SnapshotLabel
    from oubliette.runtime.snapshots.workspace_job import WorkspaceAnswer, WorkspaceJobs

REFS: Final = {"files": "refs/oubliette", "rest": "refs/oubliette-rest"}
HEADS: Final = {part: f"refs/heads/{part}" for part in PARTS}
"""Commits of the newest snapshot."""
TABLE: Final = "workspace-table"
"""File with what the last snapshot found, so that only what has changed is read."""
WRITTEN: Final = ("refs/heads", "refs/new")
"""Folders of the refs that each snapshot writes. A lock in them is of a program that was killed,
with its server or at its deadline, as there is one at a time."""
MAX_PACKS: Final = 40
"""Packs, one for each snapshot, above which they are made one."""
_OBJECT: Final = re.compile(r"[0-9a-f]{40}")


class ShadowRepository:
    """Snapshots of one workspace. Its owner calls one method at a time.

    Args:
        repository: Folder of the repository, which need not exist.
        workspace: Folder of the workspace.
        git: The program.
        jobs: Reads and writes workspaces.
        limits: Of each snapshot.
        durable: Whether snapshots must survive a power failure.
        only: Paths of files and folders that alone are stored and restored; empty: everything is.
    """

    def __init__(
        self,
        repository: Path,
        workspace: Path,
        git: GitProgram,
        jobs: WorkspaceJobs,
        limits: SnapshotLimits | None = None,
        *,
        durable: bool = False,
        only: tuple[str, ...] = (),
    ) -> None:
        self._only = only
        self.repository = repository
        self.workspace = workspace
        self._git = git
        self._jobs = jobs
        self._limits = limits or SnapshotLimits()
        self._durable = durable
        self.history = SnapshotHistory(repository, git, self._limits.seconds + GRACE_SECONDS)
        self._exports = SnapshotExports(
            repository, git, self.history, self._limits.seconds + GRACE_SECONDS
        )
        self._heads: dict[str, str] | None = None
        self._seen: Glance | None = None
        self._large = False
        """Whether a glance cannot show that nothing has changed."""
        self._new_table: Path | None = None

    # ------------------------------------------------------------------ taking

    async def take(self, label: SnapshotLabel) -> Snapshot:
        """Take a snapshot of the workspace.

        Raises:
            NotFound: the workspace is gone.
            DeadlineExceeded: it takes longer than the limit.
            LimitExceeded: it has too many entries, or the project's snapshots are too large.
            RuntimeFailure: it cannot be read or stored.
        """
        failpoint("snapshot.begun")
        try:
            seen, stored = await asyncio.to_thread(self._look)
        except OSError as error:
            raise NotFound(f"the workspace {self.workspace.name} is gone") from error
        heads = await self.heads() if stored else {}
        unused = await self.is_unused() if self._only else seen.empty
        if unused and not heads:
            return Snapshot(ref=None, changed=False)
        if heads and seen.same_as(self._seen):
            await asyncio.to_thread(self._write_refs, label, heads)
            return Snapshot(
                ref=self._ref(label), changed=False, commit=heads["files"], rest=heads["rest"]
            )
        answer = await self._read_workspace(label, heads)
        made = {str(part): name for part, name in answer.heads.items()}
        if made.keys() != set(PARTS) or not all(map(_OBJECT.fullmatch, made.values())):
            raise RuntimeFailure("the workspace's reader gave no commits")
        failpoint("snapshot.read")
        await self._set_refs(label, made)
        failpoint("snapshot.stored")
        self._heads, self._seen = made, seen
        self._large = answer.entries > MAX_ENTRIES
        before, changed = heads.get("files"), heads.get("files") != made["files"]
        counts = await self.history.counts(before, made["files"]) if changed else (0, 0, 0)
        return Snapshot(
            ref=self._ref(label),
            changed=changed and counts != (0, 0, 0),
            commit=made["files"],
            rest=made["rest"],
            files=counts[0],
            insertions=counts[1],
            deletions=counts[2],
            entries=answer.entries,
            left_out=answer.left_out,
            left_out_shown=answer.left_out_shown,
            torn=answer.torn,
        )

    def _look(self) -> tuple[Glance, bool]:
        """Return a look at the workspace, and whether there may be a snapshot of it."""
        stored = self._is_there()
        return glance(self.workspace, enter=not self._large, whole=stored), stored

    async def has_end_of(self, label: SnapshotLabel) -> bool:
        """Whether a snapshot shows the end of a label's turn."""
        below = f"{REFS['files']}/{label.session_id}/"
        refs = await asyncio.to_thread(refs_below, self.repository, below)
        try:
            at_end(
                named((f"{commit}|||0|{ref}" for ref, commit in refs.items()), below), label.turn
            )
        except NotFound:
            return False
        return True

    async def is_unused(self) -> bool:
        """Whether the workspace has nothing that a snapshot of it would have.

        Raises:
            FileNotFoundError: it is gone.
        """
        if not self._only:
            return (await asyncio.to_thread(glance, self.workspace)).empty
        return await asyncio.to_thread(
            lambda: not any(os.path.lexists(self.workspace / path) for path in self._only)
        )

    async def _read_workspace(self, label: SnapshotLabel, heads: dict[str, str]) -> WorkspaceAnswer:
        await asyncio.to_thread(check_room, self.repository.parent, self._limits.max_bytes)
        await asyncio.to_thread(make_repository, self.repository, durable=self._durable)
        await asyncio.to_thread(remove_locks, self.repository, WRITTEN)
        table = self.repository / TABLE
        new_table = self.repository / f"{TABLE}.{secrets.token_hex(8)}"
        known = heads and await asyncio.to_thread(table.exists)
        job = {
            "do": "take",
            "table": str(table) if known else None,
            "new_table": str(new_table),
            "heads": heads,
            "message": label.message,
            "when": int(label.when),
            "max_file_bytes": self._limits.max_file_bytes,
        }
        try:
            try:
                answer = await self._work(job)
            except RuntimeFailure:
                if not known:
                    raise
                await asyncio.to_thread(new_table.unlink, missing_ok=True)
                answer = await self._work({**job, "table": None})  # what it named may be damaged
            self._new_table = new_table if answer.table else None
            if not answer.table:
                await asyncio.to_thread(new_table.unlink)
            return answer
        except BaseException:
            with contextlib.suppress(OSError):
                new_table.unlink(missing_ok=True)
            raise

    async def _set_refs(self, label: SnapshotLabel, heads: dict[str, str]) -> None:
        if self._durable:
            refs = [f"{REFS[part]}/{label.name}" for part in PARTS]
            await asyncio.to_thread(remove_locks, self.repository, refs)
            lines = [f"update {HEADS[part]} {heads[part]}\n" for part in PARTS]
            lines += [f"update {REFS[part]}/{label.name} {heads[part]}\n" for part in PARTS]
            await self._run("update-ref", "--stdin", given="".join(lines).encode())
        else:
            await asyncio.to_thread(self._write_refs, label, heads, with_heads=True)
        if self._new_table is not None:
            await asyncio.to_thread(self._new_table.replace, self.repository / TABLE)

    def _write_refs(
        self, label: SnapshotLabel, heads: dict[str, str], *, with_heads: bool = False
    ) -> None:
        """Write refs as git has them in files, without a process for it.

        The ref of the files comes after that of the rest, so a snapshot that is listed is whole.
        """
        for part in reversed(PARTS):
            for name in (f"{REFS[part]}/{label.name}", *((HEADS[part],) if with_heads else ())):
                path = self.repository / name
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                new = path.with_name(f"{path.name}.lock")  # git's name of a ref being written
                new.write_text(heads[part] + "\n")
                new.replace(path)

    @staticmethod
    def _ref(label: SnapshotLabel) -> str:
        return f"{REFS['files']}/{label.name}"

    # ------------------------------------------------------------------ looking

    async def snapshots(self, session_id: str | None = None) -> list[StoredSnapshot]:
        """Return the snapshots of a session, or all, in the order of their refs' names."""
        if not await self.exists():
            return []
        below = REFS["files"] if session_id is None else f"{REFS['files']}/{session_id}"
        text = await self._run(
            "for-each-ref", "--sort=version:refname", "--format=%(objectname) %(refname)", below
        )
        lines = [line.split(" ") for line in text.decode().splitlines()]
        return [StoredSnapshot(ref=ref, commit=commit) for commit, ref in lines]

    async def answer(self, question: HistoryQuestion) -> HistoryAnswer:
        """The answer to a question about the snapshots of a session.

        Raises:
            NotFound: there is no such snapshot.
            InvalidParameter: the question cannot be understood.
        """
        if isinstance(question, LogQuestion):
            return await self.history.log(question) if await self.exists() else LogAnswer()
        if isinstance(question, PieceQuestion):
            return await self._exports.piece(question)
        if isinstance(question, ExportQuestion) and await self.exists():
            return await self._exports.export(question)
        if isinstance(question, ForkQuestion):
            fork = ForkAnswer(snapshot=None)
            if await self.exists():
                fork = await self.history.fork_point(question)
            if fork.snapshot is None:
                await self._check_always_empty(question.session_id)
            return fork
        if isinstance(question, StatesQuestion):
            states = await self._states(question)
            if states.name is None:
                raise no_snapshots_of(question.session_id)
            return states
        found = DiffAnswer(between=None)
        if isinstance(question, ExportQuestion):
            question = question.range
        elif await self.exists():
            found = await self.history.diff(question)
        if found.between is None:
            await self._check_always_empty(question.session_id)
        return found

    async def _check_always_empty(self, session_id: str) -> None:
        if await self._has_files():
            raise no_snapshots_of(session_id)

    async def _states(self, question: StatesQuestion) -> StatesAnswer:
        if not await self.exists():
            return StatesAnswer()
        seconds = self._limits.seconds + GRACE_SECONDS
        return await states_up_to(self.repository, self._git, self.history, question, seconds)

    async def _has_files(self) -> bool:
        """Whether there is a workspace in which there is something to be stored."""
        try:
            return not await self.is_unused()
        except FileNotFoundError:
            return False

    async def exists(self) -> bool:
        """Whether a snapshot was ever taken."""
        return await asyncio.to_thread(self._is_there)

    def _is_there(self) -> bool:
        return (self.repository / "HEAD").exists()

    async def heads(self) -> dict[str, str]:
        """Return the commits of the newest snapshot, by part; nothing without one."""
        if not await self.exists():  # or something has removed it
            return {}
        if self._heads is None:
            heads = await self._commits(HEADS)
            self._heads = heads if len(heads) == len(PARTS) else {}
        return self._heads

    # ------------------------------------------------------------------ restoring

    async def restore(self, ref: str | None = None) -> Restored:
        """Make the workspace equal to a snapshot: what came later is removed.

        Take a snapshot before it, so that nothing is lost. If it fails or is cancelled, the
        workspace is between the two, and the same call makes it whole.

        Args:
            ref: One of `snapshots`; None: the newest.

        Raises:
            NotFound: there is no such snapshot.
            DeadlineExceeded: it takes longer than the limit.
            RuntimeFailure: the workspace cannot be written, or the snapshot is damaged.
        """
        commits = await self.commits_of(ref)
        self._seen = None
        failpoint("restore.begun")
        answer = await self._work({"do": "restore", "commits": commits})
        failpoint("restore.written")
        return Restored(
            written=answer.written,
            removed=answer.removed,
            missing_count=answer.missing_count,
            missing=answer.missing,
        )

    async def copy(self, ref: str, copy: SnapshotCopy) -> Restored:
        """Make another folder equal to a snapshot, but for objects of git that it has.

        Its entries get the owner of the folder. If it fails or is cancelled, the folder
        is of no use.

        Args:
            ref: One of `snapshots`.
            copy: The folder, and the name of its branch.

        Raises:
            NotFound: there is no such snapshot.
            DeadlineExceeded: it takes longer than the limit.
            RuntimeFailure: the folder cannot be written, or the snapshot is damaged.
        """
        job = {
            "do": "restore",
            "commits": await self.commits_of(ref),
            "only": self._only,
            "branches": [copy.old_branch, copy.new_branch] if copy.new_branch else None,
            "keep_objects": True,
            "large_from": copy.large_from,
            "keep_free": copy.keep_free,
        }
        answer = await self._jobs.do(
            Path(copy.folder), job, self.repository, self._git, self._limits
        )
        return Restored(
            written=answer.written,
            removed=answer.removed,
            missing_count=answer.missing_count,
            missing=answer.missing,
        )

    async def commits_of(self, ref: str | None) -> dict[str, str]:
        """Return the commits of a snapshot, by part; None: of the newest.

        Raises:
            NotFound: there is no such snapshot.
        """
        if not await self.exists():
            raise NotFound("the workspace has no snapshots")
        if ref is None:
            commits = await self.heads()
        else:
            name = ref.removeprefix(f"{REFS['files']}/")
            wanted = {part: f"{REFS[part]}/{name}" for part in PARTS}
            commits = await self._commits(wanted)
        if commits.keys() != set(PARTS):
            raise NotFound(f"there is no snapshot {ref}", hint="see the list of snapshots")
        return commits

    async def follow(self, heads: Mapping[str, str]) -> None:
        """Continue from commits that came from elsewhere; `restore` makes the workspace so."""
        await asyncio.to_thread(remove_locks, self.repository, WRITTEN)
        lines = [f"update {HEADS[part]} {heads[part]}\n" for part in PARTS]
        await asyncio.to_thread((self.repository / TABLE).unlink, missing_ok=True)
        await self._run("update-ref", "--stdin", given="".join(lines).encode())
        self._heads, self._seen = dict(heads), None

    # ------------------------------------------------------------------ keeping

    async def tidy(self) -> bool:
        """Make one pack of many, and remove what ended programs have left; return whether it did.

        Raises:
            RuntimeFailure: git failed; nothing is lost.
            DeadlineExceeded: it takes too long; nothing is lost.
        """
        if not await asyncio.to_thread(self._is_untidy):
            return False
        await asyncio.to_thread(remove_locks, self.repository, ("refs", PACKED, "HEAD"))
        await self._run("pack-refs", "--all", "--prune")
        await self._run("repack", "-a", "-d", "-q", "--no-write-bitmap-index")
        await self._run("prune", "--expire=now")
        return True

    def _is_untidy(self) -> bool:
        for left in (
            *self.repository.glob(f"{TABLE}.*"),
            *self.repository.glob("fast_import_*"),
            *self.repository.glob(f"{UNSENT}*"),
        ):
            left.unlink(missing_ok=True)
        remove_old(self.repository)
        return len(list((self.repository / "objects" / "pack").glob("*.pack"))) > MAX_PACKS

    async def _run(self, *arguments: str, given: bytes = b"") -> bytes:
        return await self._git.run(self.repository, *arguments, given=given, seconds=self._seconds)

    async def _commits(self, refs: Mapping[str, str]) -> dict[str, str]:
        """Return the commits of those of the refs that there are, by part."""
        found = await self._git.refs(self.repository, *refs.values(), seconds=self._seconds)
        return {part: found[ref] for part, ref in refs.items() if ref in found}

    @property
    def _seconds(self) -> float:
        return self._limits.seconds + GRACE_SECONDS

    async def _work(self, job: dict[str, Any]) -> WorkspaceAnswer:
        job = {**job, "only": self._only}
        where = self.repository
        return await self._jobs.do(self.workspace, job, where, self._git, self._limits)
