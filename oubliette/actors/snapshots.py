"""Owner of the snapshots of all workspaces: it does one thing at a time with those of each.

A snapshot is stored when its request is answered. Requests for one workspace are served in the
order in which they come, so the end of a turn is stored before the beginning of the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from oubliette.actors.snapshot_copies import (
    FORGET_SECONDS,
    forget_deleted,
    repository_of,
    second_place,
    served_snapshots,
)
from oubliette.actors.snapshot_jobs import JobOutcome, JobResult, ToolJob, done, principal_of
from oubliette.actors.snapshot_news import NOTHING, Key, SnapshotNews, home_key
from oubliette.actors.snapshot_requests import (
    AskHistory,
    BringFiles,
    BringSessionFiles,
    CloseSnapshots,
    CopySnapshot,
    ForgetCopies,
    ForgetSessionFiles,
    KeepSessionFiles,
    ListServed,
    RestoreWorkspace,
    SendCopy,
    StoreLast,
    TakeCheckpoint,
    TakeSnapshot,
)
from oubliette.errors import NotFound, OublietteError, RuntimeFailure
from oubliette.kit import Actor, Deferred, LocalMessage, handles
from oubliette.runtime.long_work import works_for
from oubliette.runtime.snapshots.copies import CopyName
from oubliette.runtime.snapshots.exports import KEPT_SECONDS
from oubliette.runtime.snapshots.git_program import GitProgram
from oubliette.runtime.snapshots.history_records import PieceAnswer
from oubliette.runtime.snapshots.workspace_job import WorkspaceJobs

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.actors.context import ActorContext
    from oubliette.runtime.repositories.served_view import ServedSnapshots
    from oubliette.runtime.snapshots.shadow_repository import ShadowRepository
    from oubliette.runtime.snapshots.snapshot_records import Snapshot

AT_ONCE: Final = 6
"""Workspaces that are read or written at a time; others wait."""
OF_PRINCIPAL: Final = 4
"""Those for one principal, whose agents determine how long that takes, in however many projects."""
OF_PROJECT: Final = 2
"""Those of one project."""
KEPT: Final = 1000
"""Workspaces whose last snapshot is remembered, so that one without a change costs nothing."""
LIST_SECONDS: Final = 45.0
"""Time for snapshots that are under way when a project's are listed."""
TIDY_SECONDS: Final = 30.0
"""Time after a snapshot until its repository is looked after."""

log = structlog.get_logger(__name__)

Heads = tuple[str | None, str | None]
"""Commits of a snapshot."""
Job = TakeSnapshot | ToolJob | None
"""Work in one workspace: a snapshot to take, or what a tool asks for; None: only files of another
node are wanted."""


class _Done(LocalMessage):
    """To itself: the outcome of a job."""

    key: Key
    answer: Deferred | None = None
    snapshot: Snapshot | None = None
    result: JobResult | None = None
    session_id: str = ""
    """Session that is to have the news; empty: none."""
    error: BaseException | None = None
    sent: Heads | None = None
    """Snapshot that is in the second place now."""
    not_sent: bool = False
    """Whether it could not be sent there."""


class _Listed(LocalMessage):
    """To itself: the snapshots of a project's workspaces, or why they cannot be listed."""

    answer: Deferred
    found: tuple[ServedSnapshots, ...] = ()
    error: OublietteError | None = None


class _Tidy(LocalMessage):
    """To itself: time to look after a repository."""

    key: Key


class _ForgetDeleted(LocalMessage):
    """To itself: time to look for copies of deleted projects."""


class _Forgotten(LocalMessage):
    """To itself: copies of deleted projects are removed, as far as possible."""


class SnapshotsActor(Actor):
    """Owner of the snapshots of all workspaces. Its name must be `snapshots`."""

    mailbox_size = 10_000

    def __init__(self, context: ActorContext, git: str) -> None:
        """Take snapshots with the program `git`, at this path."""
        super().__init__()
        self._context = context
        self._git = GitProgram(git)
        self._jobs = WorkspaceJobs(AT_ONCE, OF_PRINCIPAL, OF_PROJECT)
        self._repositories: dict[Key, ShadowRepository] = {}
        self._waiting: dict[Key, deque[tuple[Job, Deferred]]] = {}
        """Requests that have not begun, of the workspaces of which a job is under way."""
        self._closing: dict[str, list[Deferred]] = {}
        """Project → requests that wait for its jobs."""
        self._tidied: set[Key] = set()
        """Workspaces whose repository is going to be looked after."""
        self._second = second_place(context, self._git)
        self._sent: dict[Key, Heads | None] = {}
        """Newest snapshot of each workspace in the second place, once both were compared."""
        self._news = SnapshotNews()
        self._paths: dict[Key, tuple[str, ...]] = {}
        """Paths of the files of agents' sessions, in their HOMEs."""
        self._expected: set[Key] = set()
        """Sessions of which there must be some, here or in the second place."""

    def on_start(self) -> None:
        """Look for what earlier servers have left in the second place."""
        if self._second is not None:
            self._forget_deleted(_ForgetDeleted())

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        del reason, error
        await self._jobs.aclose()

    @handles(TakeSnapshot)
    def _take(self, message: TakeSnapshot) -> None:
        self._request((message.project_id, message.workspace_id), message)

    @handles(BringFiles)
    def _bring(self, message: BringFiles) -> None:
        self._request((message.project_id, message.workspace_id), None)

    @handles(KeepSessionFiles)
    def _keep_session_files(self, message: KeepSessionFiles) -> None:
        key = home_key(message.project_id, message.session_id)
        self._paths[key] = message.paths
        taking = TakeSnapshot(project_id=key[0], workspace_id=key[1], label=message.label)
        self._request(key, taking)

    @handles(BringSessionFiles)
    def _bring_session_files(self, message: BringSessionFiles) -> None:
        key = home_key(message.project_id, message.session_id)
        self._paths[key] = message.paths
        if message.expected:
            self._expected.add(key)
        self._request(key, None)

    @handles(AskHistory, TakeCheckpoint, RestoreWorkspace, CopySnapshot, StoreLast)
    def _tool_job(self, message: ToolJob) -> None:
        self._request((message.project_id, message.workspace_id), message)

    def _request(self, key: Key, job: Job) -> None:
        answer = self.defer()
        if key in self._waiting:
            self._waiting[key].append((job, answer))
        else:
            self._waiting[key] = deque()
            self._begin(key, job, answer)

    def _begin(self, key: Key, job: Job, answer: Deferred) -> None:
        if isinstance(job, ToolJob):
            self.pipe_to_self(
                self._worked(key, job),
                lambda end: _Done(key=key, answer=answer, result=end.result, snapshot=end.snapshot),
                lambda error: _Done(key=key, answer=answer, error=error),
            )
            return
        reader = "" if job is None else job.label.session_id
        self.pipe_to_self(
            self._taken(key, job),
            lambda taken: _Done(key=key, answer=answer, snapshot=taken, session_id=reader),
            lambda error: _Done(key=key, answer=answer, error=error),
        )

    async def _worked(self, key: Key, job: ToolJob) -> JobOutcome:
        works_for.set(await principal_of(self._context.reader, key, job))
        with contextlib.suppress(NotFound):  # a workspace that was deleted has its snapshots still
            brought = await self._taken(key, None)
            self._news.keep(key, brought)
        return await done(self._context, self._repository(key), job)

    async def _taken(self, key: Key, job: TakeSnapshot | None) -> Snapshot:
        if not works_for.get():
            works_for.set(await principal_of(self._context.reader, key, job))
        repository = self._repository(key)
        if self._second is None or key in self._sent:
            return await _take(repository, job)
        if not await asyncio.to_thread(repository.workspace.is_dir):
            raise NotFound("there is no such folder here")  # compared once there is one
        brought, warning = None, ""
        when = self.clock.time() if job is None else job.label.when
        try:
            brought = await self._second.bring(repository, CopyName(*key), when)
        except NotFound:
            raise
        except OublietteError as error:
            warning = f"the files of another node may be missing: {error}"
        if key in self._expected:
            self._expected.discard(key)
            if not warning and await repository.is_unused():
                warning = (
                    "no files of the agent's session are here: it may not know what came before"
                )
        self._sent[key] = None if brought is None else (brought.commit, brought.rest)
        taken = await _take(repository, job)
        return msgspec.structs.replace(taken, brought=brought, warning=warning)

    @handles(SendCopy)
    def _send_again(self, message: SendCopy) -> None:
        key = (message.project_id, message.workspace_id)
        if self._second is not None and key not in self._waiting:  # otherwise at the next look
            self._waiting[key] = deque()
            self._send(key, self._sent.get(key))

    def _send(self, key: Key, heads: Heads | None) -> None:
        """Send what is new to the second place, before the next snapshot of the workspace."""
        assert self._second is not None
        self.pipe_to_self(
            self._second.copies.send(self._context.folders.snapshots_of(*key), CopyName(*key)),
            lambda _: _Done(key=key, sent=heads),
            lambda error: _Done(key=key, error=error, not_sent=True),
        )

    def _repository(self, key: Key) -> ShadowRepository:
        found = self._repositories.pop(key, None)
        if found is None:
            if len(self._repositories) >= KEPT:
                idle = (each for each in self._repositories if each not in self._waiting)
                self._repositories.pop(next(idle, key), None)
            paths = self._paths.get(key, ())
            found = repository_of(self._context, self._git, self._jobs, key, paths)
        self._repositories[key] = found  # as the one that was used last
        return found

    @handles(_Done)
    def _done(self, message: _Done) -> None:
        key, answer = message.key, message.answer
        if message.error is not None and not isinstance(message.error, NotFound):
            reason = str(message.error)
            log.warning("snapshot failed", project_id=key[0], workspace_id=key[1], reason=reason)
        if message.sent is not None:
            self._sent[key] = message.sent
        if message.not_sent:
            why = f"no copy of the newest snapshot in cluster.snapshots: {message.error}"
            self._news.failed(key, why)
        if answer is not None and message.result is not None:
            answer.set(message.result)
            if isinstance(message.result, PieceAnswer):  # its file is not kept for long
                self.after(KEPT_SECONDS + TIDY_SECONDS, _Tidy(key=key))
        elif answer is not None and message.snapshot is not None:
            if message.session_id and answer.asked:
                news = self._news.taken_with(key, message.session_id, message.snapshot)
                answer.set(news)
            else:
                self._news.keep(key, message.snapshot)
                answer.set(None)
        elif answer is not None:
            answer.set_error(_as_ours(message.error))
        if message.snapshot is not None and message.snapshot.changed and key not in self._tidied:
            self._tidied.add(key)
            self.after(TIDY_SECONDS, _Tidy(key=key))
        taken = message.snapshot
        if (
            self._second is not None
            and taken is not None
            and taken.commit is not None
            and (taken.commit, taken.rest) != self._sent.get(key)
        ):
            self._send(key, (taken.commit, taken.rest))
            return
        if self._waiting[key]:
            self._begin(key, *self._waiting[key].popleft())
            return
        del self._waiting[key]
        self._close_idle(key[0])

    @handles(_Tidy)
    def _tidy(self, message: _Tidy) -> None:
        key = message.key
        if key in self._waiting:  # busy: later
            self.after(TIDY_SECONDS, message)
            return
        self._tidied.discard(key)
        if key not in self._repositories:
            return
        self._waiting[key] = deque()
        self.pipe_to_self(
            self._repositories[key].tidy(),
            lambda _: _Done(key=key),
            lambda error: _Done(key=key, error=error),
        )

    @handles(ListServed)
    def _list_served(self, message: ListServed) -> None:
        answer = self.defer()
        folder = self._context.folders.snapshots / message.project_id
        self.pipe_to_self(
            self._after_jobs(message.project_id, folder),
            lambda found: _Listed(answer=answer, found=found),
            lambda error: _Listed(answer=answer, error=_as_ours(error)),
        )

    async def _after_jobs(self, project_id: str, folder: Path) -> tuple[ServedSnapshots, ...]:
        """List snapshots, once those that were requested before are stored."""
        busy = [key[1] for key in self._waiting if key[0] == project_id]
        waits = (BringFiles(project_id=project_id, workspace_id=each) for each in busy)
        # A failure is the answer to its own request; the list has what is stored
        asks = (self.ref.ask(each, timeout=LIST_SECONDS) for each in waits)
        await asyncio.gather(*asks, return_exceptions=True)
        return await asyncio.to_thread(served_snapshots, folder)

    @handles(_Listed)
    def _listed(self, message: _Listed) -> None:
        if message.error is None:
            message.answer.set(message.found)
        else:
            message.answer.set_error(message.error)

    # ------------------------------------------------------------------ the end of projects

    @handles(ForgetCopies)
    def _forget(self, message: ForgetCopies) -> None:
        if self._second is not None:
            forgotten = self._second.copies.forget(message.project_id)
            self.pipe_to_self(forgotten, lambda _: _Forgotten(), _not_forgotten)

    @handles(ForgetSessionFiles)
    def _forget_session(self, message: ForgetSessionFiles) -> None:
        key = home_key(message.project_id, message.session_id)
        self._repositories.pop(key, None)
        self._paths.pop(key, None)
        self._sent.pop(key, None)
        if self._second is not None:
            dropped = self._second.copies.drop(CopyName(*key))
            self.pipe_to_self(dropped, lambda _: _Forgotten(), _not_forgotten)

    @handles(_ForgetDeleted)
    def _forget_deleted(self, message: _ForgetDeleted) -> None:
        assert self._second is not None
        self.after(FORGET_SECONDS, message)
        done = forget_deleted(self._second.copies, self._context.reader)
        self.pipe_to_self(done, lambda _: _Forgotten(), _not_forgotten)

    @handles(_Forgotten)
    def _forgotten(self, _: _Forgotten) -> None:
        pass

    @handles(CloseSnapshots)
    def _close(self, message: CloseSnapshots) -> None:
        self._closing.setdefault(message.project_id, []).append(self.defer())
        for key, requests in self._waiting.items():
            while key[0] == message.project_id and requests:
                requests.popleft()[1].set_error(NotFound("the project is being closed"))
        self._close_idle(message.project_id)

    def _close_idle(self, project_id: str) -> None:
        """Forget a project that is to be closed, once nothing of it is under way."""
        if project_id not in self._closing or any(key[0] == project_id for key in self._waiting):
            return
        for key in [key for key in self._repositories if key[0] == project_id]:
            del self._repositories[key]
            self._sent.pop(key, None)
        self._news.forget(project_id)
        self._paths = {key: paths for key, paths in self._paths.items() if key[0] != project_id}
        for answer in self._closing.pop(project_id):
            answer.set(None)


async def _take(repository: ShadowRepository, job: TakeSnapshot | None) -> Snapshot:
    if job is None or (job.unless_stored and await repository.has_end_of(job.label)):
        return NOTHING
    return await repository.take(job.label)


def _not_forgotten(error: BaseException) -> _Forgotten:
    log.warning("copies of deleted projects are left for later", reason=str(error))
    return _Forgotten()


def _as_ours(error: BaseException | None) -> OublietteError:
    return error if isinstance(error, OublietteError) else RuntimeFailure(f"snapshot: {error!r}")
