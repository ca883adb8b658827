"""Tool `session_push`: a branch of the project's repository goes to where that was cloned from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from oubliette.actors.merge_requests import PushBranch
from oubliette.contract import field_types
from oubliette.contract.changes import PushInfo
from oubliette.contract.field_types import Params
from oubliette.errors import Conflict
from oubliette.records import made_of
from oubliette.tools.clone_progress import receiving
from oubliette.tools.handlers.repository.agent_commits import check_cloned
from oubliette.tools.handlers.repository.repositories import SLACK_SECONDS
from oubliette.tools.handlers.repository.session_merge import (
    BranchName,
    ask_merge,
    branch_name,
    merge_request,
)
from oubliette.tools.handlers.sessions import visible_session
from oubliette.tools.schema.merge_views import conflict_views
from oubliette.tools.spec import tool

if TYPE_CHECKING:
    from oubliette import records
    from oubliette.runtime.repositories.branch_push import PushOutcome
    from oubliette.runtime.repositories.merging.merge_records import MergeOutcome
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext


class SessionPush(Params, frozen=True, kw_only=True):
    """Parameters of `session_push`."""

    session_id: Annotated[field_types.SessionId, Meta(description="Id of the session.")]
    branch: Annotated[
        BranchName,
        Meta(
            description="Branch of the project's repository. If there is none of this name, the"
            " session is merged into it first, as session_merge does."
        ),
    ]
    to: Annotated[
        BranchName | None, Meta(description="Its name in the other repository. Unset: the same.")
    ] = None


@tool(SessionPush, PushInfo, scope="write", runs_on="needed")
async def session_push(
    services: ToolServices, context: CallContext, params: SessionPush
) -> PushInfo:
    """Push a branch of a session's project to the repository that the project was cloned from.

    The project has to consent (repository.push of project_create, project_update). Commits there
    that the branch lacks are never replaced: the push is refused.
    """
    session = await visible_session(services, context, params.session_id)
    branch = branch_name(params.branch, "branch")
    to = branch if params.to is None else branch_name(params.to, "to")
    await check_cloned(services, context, session)
    merged: MergeOutcome | None = None
    pushed = await _ask_push(services, context, session, branch, to)
    if pushed.commit is None:
        request = await merge_request(services, context, session, branch)
        merged = await ask_merge(services, session, request)
        if merged.up_to_date:
            raise Conflict(
                f"session {session.id} has changed nothing that could be pushed",
                hint="session_diff shows what it has changed",
            )
        if not merged.conflicts:
            pushed = await _ask_push(services, context, session, branch, to)
    conflicts = () if merged is None else merged.conflicts
    return made_of(
        pushed,
        PushInfo,
        session_id=session.id,
        branch=branch,
        to=to,
        repository=pushed.where,
        merged=merged is not None and merged.merged,
        conflicts=conflict_views(conflicts),
        conflicts_count=len(conflicts),
    )


async def _ask_push(
    services: ToolServices, context: CallContext, session: records.Session, branch: str, to: str
) -> PushOutcome:
    project = await services.project_ref(session.project_id)
    seconds = services.config.repositories.clone_seconds + SLACK_SECONDS
    async with receiving(services, context) as progress_to:
        message = PushBranch(branch=branch, to=to, progress_to=progress_to)
        return await project.ask(message, timeout=seconds)
