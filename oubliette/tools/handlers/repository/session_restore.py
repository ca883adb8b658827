"""Tools that keep a state of a workspace, and bring one back: `checkpoint`, `session_restore`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from oubliette.actors.snapshot_requests import RestoreWorkspace, TakeCheckpoint
from oubliette.contract import field_types
from oubliette.contract.changes import CheckpointInfo, RestoreInfo
from oubliette.contract.field_types import Params
from oubliette.errors import InvalidParameter
from oubliette.runtime.snapshots.snapshot_records import SnapshotLabel
from oubliette.tools.handlers.repository.agent_commits import (
    check_project,
    seconds_for,
    snapshots_ref,
)
from oubliette.tools.handlers.repository.session_diff import DiffPoint
from oubliette.tools.handlers.sessions import visible_session
from oubliette.tools.spec import tool

if TYPE_CHECKING:
    from oubliette.records import Session
    from oubliette.runtime.snapshots.snapshot_records import Moment
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

MILLISECOND: Final = 1000

CheckpointName = Annotated[str, Meta(max_length=64, pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


class Checkpoint(Params, frozen=True, kw_only=True):
    """Parameters of `checkpoint`."""

    session_id: Annotated[
        field_types.SessionId | None,
        Meta(description="Id of the session. Unset, for an agent: its own."),
    ] = None
    name: Annotated[
        CheckpointName | None,
        Meta(description="Name that the session has not used yet. Unset: the time, in ms."),
    ] = None


class SessionRestore(Params, frozen=True, kw_only=True):
    """Parameters of `session_restore`."""

    session_id: Annotated[field_types.SessionId, Meta(description="Id of the session.")]
    turn: Annotated[
        DiffPoint | None,
        Meta(
            description="The end of this turn, or a snapshot by its name in session_log, such as"
            " 1-start."
        ),
    ] = None
    checkpoint: Annotated[
        CheckpointName | None,
        Meta(description="The checkpoint that was given this name; instead of turn."),
    ] = None
    discard: field_types.Discard = None


@tool(Checkpoint, CheckpointInfo, scope="write", runs_on="needed")
async def checkpoint(
    services: ToolServices, context: CallContext, params: Checkpoint
) -> CheckpointInfo:
    """Take a snapshot of a session's workspace now, also while a turn runs, under a name."""
    session_id = params.session_id or context.session_id
    if session_id is None:
        raise InvalidParameter("session_id: is required; give a string", field="session_id")
    session = await visible_session(services, context, session_id)
    owner = snapshots_ref(services)
    await check_project(services, session)
    label = _label(services, session, "checkpoint", params.name)
    message = TakeCheckpoint(
        project_id=session.project_id, workspace_id=session.workspace_id, label=label
    )
    taken = await owner.ask(message, timeout=seconds_for(services))
    return CheckpointInfo(
        session_id=session.id,
        snapshot=None if taken.ref is None else label.name.rpartition("/")[2],
        commit=taken.commit,
        changed=taken.changed,
        files=taken.files,
        insertions=taken.insertions,
        deletions=taken.deletions,
        torn=taken.torn,
    )


@tool(SessionRestore, RestoreInfo, scope="write", destructive=True, runs_on="needed")
async def session_restore(
    services: ToolServices, context: CallContext, params: SessionRestore
) -> RestoreInfo:
    """Make a session's workspace equal to one of its snapshots; what came later is removed.

    What is there is stored before. Refused while a turn runs or waits in the workspace. The agent
    does not learn of it: its conversation goes on.
    """
    session = await visible_session(services, context, params.session_id)
    owner = snapshots_ref(services)
    await check_project(services, session)
    if (params.turn is None) == (params.checkpoint is None):
        raise InvalidParameter("turn: give either turn or checkpoint", field="turn")
    message = RestoreWorkspace(
        project_id=session.project_id,
        workspace_id=session.workspace_id,
        point=params.turn,
        checkpoint=params.checkpoint,
        label=_label(services, session, "restore", None),
        discard=params.discard,
    )
    done = await owner.ask(message, timeout=seconds_for(services))
    return RestoreInfo(
        session_id=session.id,
        restored=done.restored,
        kept_as=done.kept_as,
        written=done.outcome.written,
        removed=done.outcome.removed,
        missing_count=done.outcome.missing_count,
        missing=done.outcome.missing,
    )


def _label(
    services: ToolServices, session: Session, moment: Moment, tag: str | None
) -> SnapshotLabel:
    now = services.clock.time()
    return SnapshotLabel(
        session_id=session.id,
        turn=session.turn_count,
        moment=moment,
        tag=tag or str(int(now * MILLISECOND)),
        agent=session.agent,
        model=session.model or "",
        cost_usd=session.cost_usd,
        when=now,
    )
