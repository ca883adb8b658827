"""Commits that an agent has made in its workspace, as several tools use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.actors.merge_requests import FetchAgentCommits
from oubliette.actors.snapshot_requests import TakeCheckpoint
from oubliette.errors import Conflict
from oubliette.runtime.snapshots.history_records import StatesAnswer, StatesQuestion
from oubliette.runtime.snapshots.snapshot_records import SnapshotLabel
from oubliette.tools.handlers.containers import container_in_use, workspace_path
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.handlers.snapshot_answers import ask_history, seconds_for, snapshots_ref

if TYPE_CHECKING:
    from oubliette import records
    from oubliette.actors.merge_requests import AgentCommitsFetched
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

COMMITS_SECONDS: Final = 900.0
"""Time for the fetch, and for what is under way in the repository before it."""
_MILLISECOND: Final = 1000


async def fetched_commits(services: ToolServices, session: records.Session) -> AgentCommitsFetched:
    """Fetch what was committed in a session's workspace into the project's repository.

    The container is started for it, if it does not run.

    Raises:
        Conflict: the workspace was deleted, or has no such commits; contains the remedy.
        OublietteError: another failure, as for `CommitQuarantine.fetch`.
    """
    workspace = await services.reader.workspace(session.workspace_id)
    if workspace is None or workspace.deleted_at is not None:
        raise Conflict(
            "the workspace was deleted, with the repository that has the agent's commits",
            hint='use commits="turns": the snapshots of its files are there',
        )
    project = await services.reader.project(session.project_id)
    assert project is not None, "the session is visible"
    states = await ask_history(services, session, StatesQuestion(session_id=session.id))
    assert isinstance(states, StatesAnswer)
    async with container_in_use(services, project, workspace.id, "commits"):
        owner = await services.project_ref(project.id)
        message = FetchAgentCommits(
            workspace_id=workspace.id,
            workspace=workspace_path(project, workspace.id),
            first_tree=states.states[0].tree,
        )
        return await owner.ask(message, timeout=COMMITS_SECONDS)


async def check_cloned(
    services: ToolServices, context: CallContext, session: records.Session
) -> None:
    """Check that the project of a session has a repository.

    Raises:
        Conflict: it has none.
        NotFound: the key does not reach the project.
    """
    project = await visible_project(services, context, session.project_id)
    if project.repository is None:
        raise Conflict(
            f"project {project.id} was not cloned from a repository, so it has no branches",
            hint="session_export takes the changes out as a patch",
        )


async def store_now(services: ToolServices, session: records.Session) -> None:
    """Take a snapshot of a session's workspace as it is now, which is not older than its commits.

    Raises:
        OublietteError: it cannot be stored.
    """
    now = services.clock.time()
    label = SnapshotLabel(
        session_id=session.id,
        turn=session.turn_count,
        moment="branch",
        tag=str(int(now * _MILLISECOND)),
        when=now,
    )
    await snapshots_ref(services).ask(
        TakeCheckpoint(
            project_id=session.project_id, workspace_id=session.workspace_id, label=label
        ),
        timeout=seconds_for(services),
    )
