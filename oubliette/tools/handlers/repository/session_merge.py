"""Tool `session_merge`: what an agent has changed, in a branch of the project's repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from oubliette.actors.merge_requests import DropUnused, MergeSession
from oubliette.contract import field_types
from oubliette.contract.changes import MergeInfo
from oubliette.contract.field_types import Params
from oubliette.errors import InvalidParameter, OublietteError
from oubliette.ids import new_uuid
from oubliette.runtime.repositories.addresses import check_branch
from oubliette.runtime.repositories.merging.merge_records import MergeRequest, Strategy
from oubliette.runtime.repositories.merging.session_commits import subject_of
from oubliette.runtime.snapshots.history_records import StatesAnswer, StatesQuestion
from oubliette.tools.handlers.repository.agent_commits import (
    ask_history,
    check_cloned,
    fetched_commits,
    snapshots_ref,
    store_now,
)
from oubliette.tools.handlers.repository.session_diff import DiffPoint
from oubliette.tools.handlers.session_spawn import SessionSpawn, spawn
from oubliette.tools.handlers.sessions import visible_session
from oubliette.tools.schema.merge_views import merge_view
from oubliette.tools.spec import tool

if TYPE_CHECKING:
    from oubliette import records
    from oubliette.runtime.repositories.merging.merge_records import MergeOutcome
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

MERGE_SECONDS: Final = 600.0
"""Time for a merge, and for what is under way in the repository before it."""
MAX_NAMED: Final = 100
"""Maximum of paths that a prompt names."""
RESOLVE_PROMPT: Final = """\
Resolve the conflicts of a merge into the branch {into}.

The workspace has the files of that branch, with the changes of another session merged into them.
These paths conflict:

{paths}

Between <<<<<<< and ======= is the text of the branch, between ======= and >>>>>>> that of the
session. Keep the purpose of both, and remove all of these markers. Of a file that one side has
deleted and the other changed, the changed version is there: keep it or delete it. Do not change
anything else, and run the tests that concern these files if there are any.
"""

BranchName = Annotated[str, Meta(min_length=1, max_length=200)]


class SessionMerge(Params, frozen=True, kw_only=True):
    """Parameters of `session_merge`."""

    session_id: Annotated[field_types.SessionId, Meta(description="Id of the session.")]
    into: Annotated[
        BranchName,
        Meta(
            description="Branch of the project's repository. One that does not exist begins where"
            " it was fetched, or at the commit that the workspace was made of."
        ),
    ]
    strategy: Annotated[
        Strategy,
        Meta(
            description="merge: a commit per turn, and a merge where the branch has others; squash:"
            " one commit; rebase: a commit per turn on top of the branch."
        ),
    ] = "merge"
    turn: Annotated[
        DiffPoint | None,
        Meta(
            description="As of the end of this turn, or a snapshot by its name in session_log."
            " Unset: the newest."
        ),
    ] = None
    commits: Annotated[
        Literal["turns", "agent"],
        Meta(
            description="turns: a commit per turn; agent: those that the agent has made in its"
            " workspace, as they are, and one for what it has not committed. Not for squash."
        ),
    ] = "turns"
    message: Annotated[
        Annotated[str, Meta(min_length=1, max_length=20_000)] | None,
        Meta(description="Message of the merge or of the one commit; not for rebase."),
    ] = None
    dry_run: Annotated[bool, Meta(description="Return the outcome, and change nothing.")] = False
    resolve: Annotated[
        Literal["agent"] | None,
        Meta(
            description="agent: if the session conflicts, start another one that resolves it, in a"
            " new workspace of the branch. Not for rebase."
        ),
    ] = None


@tool(SessionMerge, MergeInfo, scope="write", runs_on="needed", enters="new")
async def session_merge(
    services: ToolServices, context: CallContext, params: SessionMerge
) -> MergeInfo:
    """Merge what a session has changed into a branch of the repository that its project has.

    It is the workspace as of a snapshot, since it was cloned. No checkout is touched and nothing is
    pushed. Conflicts are part of the answer; then the branch is as it was.
    """
    session = await visible_session(services, context, params.session_id)
    into = branch_name(params.into, "into")
    _check(params)
    resolve_in = new_uuid() if params.resolve is not None else None
    head = None
    if params.commits == "agent":
        await check_cloned(services, context, session)
        head = (await fetched_commits(services, session)).head
        await store_now(services, session)
    request = msgspec.structs.replace(
        await merge_request(services, context, session, into, params.turn),
        strategy=params.strategy,
        message=params.message,
        dry_run=params.dry_run,
        resolve_in=resolve_in,
        agent_head=head,
    )
    outcome = await ask_merge(services, session, request)
    resolving = None
    if resolve_in is not None and outcome.resolve_commit is not None:
        settings = _resolving(session, into, resolve_in, outcome)
        try:
            resolving = (
                await spawn(
                    services, context, settings, session.project_id, settings.prompt,
                    name="session_spawn",
                )
            ).session_id  # fmt: skip
        except OublietteError:  # perhaps before the project was asked for the session
            project = await services.project_ref(session.project_id)
            await project.ask(DropUnused(workspace_id=resolve_in))
            raise
    return merge_view(
        outcome,
        session_id=session.id,
        strategy=params.strategy,
        snapshot=request.states.name or "",
        dry_run=params.dry_run,
        resolving=resolving,
    )


def _check(params: SessionMerge) -> None:
    """Check what excludes each other.

    Raises:
        InvalidParameter: something does.
    """
    if params.strategy == "rebase" and params.message is not None:
        raise InvalidParameter(
            "message: a rebase makes a commit per turn, with messages of their own",
            field="message",
            hint='leave it out, or choose strategy="squash"',
        )
    if params.resolve is not None and (params.strategy == "rebase" or params.dry_run):
        raise InvalidParameter(
            "resolve: conflicts of a rebase or a dry run are not resolved",
            field="resolve",
            hint='leave it out, or choose strategy="merge" or "squash"',
        )

    if params.commits == "agent":
        _check_agent(params)


def _check_agent(params: SessionMerge) -> None:
    """Check what excludes commits of the agent.

    Raises:
        InvalidParameter: something does.
    """
    if params.strategy == "squash":
        raise InvalidParameter(
            "commits: a squash makes one commit of all",
            field="commits",
            hint='leave it out, or choose strategy="merge" or "rebase"',
        )
    if params.turn is not None or params.resolve is not None:
        field = "resolve" if params.turn is None else "turn"
        raise InvalidParameter(
            f"{field}: the agent's commits are those of now, and what conflicts is not resolved",
            field=field,
            hint='leave it out, or choose commits="turns"',
        )


def _resolving(
    session: records.Session, into: str, workspace_id: str, outcome: MergeOutcome
) -> SessionSpawn:
    """The parameters of the session that resolves conflicts."""
    paths = [f"* {each.path} ({each.kind})" for each in outcome.conflicts[:MAX_NAMED]]
    if len(outcome.conflicts) > MAX_NAMED:
        paths.append(f"* and {len(outcome.conflicts) - MAX_NAMED} more")
    prompt = RESOLVE_PROMPT.format(into=into, paths="\n".join(paths))
    return SessionSpawn(
        project_id=session.project_id,
        prompt=prompt,
        workspace_id=workspace_id,
        create_workspace=True,
        new_session=True,
        source=f"conflicts of {session.id}",
        agent=session.agent,
        model=session.model,
    )


def branch_name(name: str, field: str) -> str:
    """The name of a branch that may be set.

    Raises:
        InvalidParameter: git would refuse it, or it is the name of a ref.
    """
    if check_branch(name, field).startswith("refs/"):
        raise InvalidParameter(
            f"{field}: give the name of a branch, without refs/heads/", field=field
        )
    return name


async def merge_request(
    services: ToolServices,
    context: CallContext,
    session: records.Session,
    into: str,
    turn: int | str | None = None,
) -> MergeRequest:
    """The request to merge what a session has changed.

    Raises:
        Conflict: this server takes no snapshots, or the project was not cloned.
        NotFound: there is no such snapshot.
    """
    snapshots_ref(services)  # without snapshots, that is what is to be changed first
    await check_cloned(services, context, session)
    states = await ask_history(services, session, StatesQuestion(session_id=session.id, upto=turn))
    assert isinstance(states, StatesAnswer)
    subjects: list[tuple[str, int, str]] = []
    for each in sorted({each.session_id for each in states.states}):
        turns = await services.reader.turns(each)
        subjects += [(each, turn.number, subject_of(turn.prompt or "")) for turn in turns]
    return MergeRequest(
        session_id=session.id,
        workspace_id=session.workspace_id,
        into=into,
        states=states,
        subjects=tuple(subjects),
    )


async def ask_merge(
    services: ToolServices, session: records.Session, request: MergeRequest
) -> MergeOutcome:
    """Have the project merge.

    Raises:
        OublietteError: as for `BranchMerge.merge`.
    """
    project = await services.project_ref(session.project_id)
    return await project.ask(MergeSession(request=request), timeout=MERGE_SECONDS)
