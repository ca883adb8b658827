"""Jobs of the SnapshotsActor that tools ask for: questions, checkpoints, older states restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from oubliette.actors.snapshot_news import HOME
from oubliette.actors.snapshot_requests import (
    AskHistory,
    CopySnapshot,
    RestoreWorkspace,
    StoreLast,
    TakeCheckpoint,
    TakeSnapshot,
    WorkspaceRestored,
)
from oubliette.actors.store.actor import Transact
from oubliette.errors import AlreadyExists, Conflict, NotFound, OublietteError, RuntimeFailure
from oubliette.runtime.snapshots.history_records import HistoryAnswer, Losses
from oubliette.runtime.snapshots.snapshot_names import (
    EMPTY_TREE,
    at,
    checkpoint_named,
    no_snapshots_of,
)
from oubliette.runtime.snapshots.snapshot_records import Restored, Snapshot

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.snapshot_news import Key
    from oubliette.runtime.snapshots.shadow_repository import ShadowRepository
    from oubliette.runtime.store.reader import Reader

ToolJob = AskHistory | TakeCheckpoint | RestoreWorkspace | CopySnapshot | StoreLast
JobResult = HistoryAnswer | Snapshot | WorkspaceRestored | Restored | Losses


class JobOutcome(NamedTuple):
    """Answer to a job, and the snapshot that was taken last in it."""

    result: JobResult
    snapshot: Snapshot | None = None


async def principal_of(reader: Reader, key: Key, job: TakeSnapshot | ToolJob | None) -> str:
    """The principal for which a job is done: who started the root of the session's tree.

    Where a job is that of no session, it is the owner of the project. What agents start with keys
    of their own is in their tree, and so it is work for the same principal.
    """
    project_id, name = key
    session_id = job.session_id if isinstance(job, CopySnapshot) else name.removesuffix(HOME)
    if isinstance(job, TakeSnapshot | TakeCheckpoint | RestoreWorkspace | StoreLast):
        session_id = job.label.session_id
    session = await reader.session(session_id)
    if session is not None:
        below = session.root_session_id not in {"", session.id}
        root = await reader.session(session.root_session_id) if below else None
        return (root or session).principal
    project = await reader.project(project_id)
    return "" if project is None else project.owner


async def done(context: ActorContext, repository: ShadowRepository, job: ToolJob) -> JobOutcome:
    """Do a job in a workspace, in which no other one is under way.

    Raises:
        OublietteError: it failed; contains the remedy.
    """
    if isinstance(job, AskHistory):
        return JobOutcome(await repository.answer(job.question))
    if isinstance(job, TakeCheckpoint):
        return await _checkpoint(repository, job)
    if isinstance(job, CopySnapshot):
        ref = f"refs/oubliette/{job.session_id}/{job.name}"
        return JobOutcome(await repository.copy(ref, job.copy))
    if isinstance(job, StoreLast):
        return await _store_last(repository, job)
    return await _restore(context, repository, job)


async def _checkpoint(repository: ShadowRepository, job: TakeCheckpoint) -> JobOutcome:
    label = job.label
    if await repository.exists():
        for each in await repository.history.snapshots(label.session_id):
            if each.moment == "checkpoint" and each.tag == label.tag:
                raise AlreadyExists(
                    f"name: the session has the checkpoint {each.name} already",
                    hint="choose another name, or leave it out",
                )
    taken = await repository.take(label)
    return JobOutcome(taken, taken)


async def _store_last(repository: ShadowRepository, job: StoreLast) -> JobOutcome:
    taken: Snapshot | None = None
    unstored: dict[str, str] = {}
    try:
        taken = await repository.take(job.label)
    except NotFound:
        pass  # its folder is gone; what is stored of it is all that there is
    except OublietteError as error:
        unstored = {"all that has changed since the last snapshot": error.message}
    found = Losses(tree=EMPTY_TREE)
    try:
        if heads := await repository.heads():
            found = await repository.history.losses(heads["files"], heads["rest"])
            named = await repository.history.named_objects(heads["rest"])
            found = msgspec.structs.replace(found, named=named)
    except RuntimeFailure as error:  # it is damaged, and may be deleted by consent as well
        unstored["all that its snapshots have"] = error.message
    if unstored:
        count = found.count + len(unstored)
        found = Losses(tree=found.tree, count=count, shown={**unstored, **found.shown})
    return JobOutcome(found, taken)


async def _restore(
    context: ActorContext, repository: ShadowRepository, job: RestoreWorkspace
) -> JobOutcome:
    label = job.label
    snapshots = (
        await repository.history.snapshots(label.session_id) if await repository.exists() else []
    )
    if not snapshots:
        raise no_snapshots_of(label.session_id)
    if job.checkpoint is not None:
        wanted = checkpoint_named(snapshots, job.checkpoint, "checkpoint")
    else:
        assert job.point is not None, "one of both is given"
        wanted = at(snapshots, job.point, "turn")
    before = await repository.take(label)
    # A turn that is accepted from now on waits for its own snapshot, which comes after this job.
    await _check_quiet(context, job.workspace_id)
    ref = f"refs/oubliette/{label.session_id}/{wanted.name}"
    if before.commit is not None and before.rest is not None:
        after = (await repository.commits_of(ref))["rest"]
        losses = await repository.history.losses(before.commit, before.rest, after)
        check_losses(losses, job.discard, "the snapshot of what is there")
    outcome = await repository.restore(ref)
    taken = await repository.take(msgspec.structs.replace(label, moment="restored"))
    kept = None if before.ref is None else before.ref.rpartition("/")[2]
    return JobOutcome(WorkspaceRestored(restored=wanted.name, kept_as=kept, outcome=outcome), taken)


async def _check_quiet(context: ActorContext, workspace_id: str) -> None:
    """Check that no turn runs or waits in a workspace.

    Raises:
        Conflict: one does.
    """
    await context.store.ask(Transact(ops=()))  # what was sent before is stored now
    workspace = await context.reader.workspace(workspace_id)
    if workspace is None:
        return
    for session in await context.reader.live_sessions(
        workspace.project_id, workspace_id=workspace_id
    ):
        if await context.reader.turns(session.id, ("queued", "running")):
            raise Conflict(
                f"a turn of session {session.id} runs or waits in this workspace",
                hint="wait for its end, or end it with session_interrupt",
            )


def check_losses(losses: Losses, discard: str | None, what: str) -> None:
    """Check that nothing is lost without consent.

    Args:
        losses: Content that is stored nowhere.
        discard: Tree whose loss was consented to.
        what: Name of what does not have it.

    Raises:
        Conflict: something would be lost; names it, and the consent that is needed.
    """
    if losses.count == 0 or discard == losses.tree:
        return
    shown = "; ".join(f"{path}: {why}" for path, why in losses.shown.items())
    more = (
        f" and {losses.count - len(losses.shown)} more" if losses.count > len(losses.shown) else ""
    )
    raise Conflict(
        f"{losses.count} entries of the workspace would be lost, as {what} does not contain them:"
        f" {shown}{more}",
        hint=f'copy them away, or consent with discard="{losses.tree}"',
    )
