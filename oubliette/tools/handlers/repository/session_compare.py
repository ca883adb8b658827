"""Tool `session_compare`: what several sessions made of the same task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.errors import InvalidParameter
from oubliette.runtime.snapshots.history_records import DiffAnswer, DiffQuestion
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.handlers.repository.agent_commits import ask_history
from oubliette.tools.handlers.repository.session_diff import Path
from oubliette.tools.handlers.sessions import visible_session
from oubliette.tools.schema import response_size
from oubliette.tools.services import session_not_found
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette.records import Session
    from oubliette.runtime.snapshots.history_records import FileChange
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

MAX_SESSIONS: Final = 50
MAX_FILES: Final = 1000
"""Maximum of files in an answer."""


class SessionCompare(Params, frozen=True, kw_only=True):
    """Parameters of `session_compare`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of their project.")]
    session_ids: Annotated[
        tuple[Annotated[str, Meta(max_length=200)], ...],
        Meta(min_length=2, max_length=MAX_SESSIONS, description="Ids of the sessions."),
    ]
    paths: Annotated[
        tuple[Path, ...],
        Meta(max_length=100, description="Only these files and folders of the workspaces."),
    ] = ()


class ComparedSession(Result, frozen=True, kw_only=True):
    """A session with all that it has changed, and what it took."""

    session_id: str
    workspace_id: str
    agent: str
    status: str
    turn_count: int
    cost_usd: float
    snapshot: Annotated[str | None, Meta(description="Its newest; null: it has changed nothing.")]
    files: int
    insertions: int
    deletions: int
    same_as: Annotated[
        str | None, Meta(description="Earlier session of the list that has made the same changes.")
    ]


class ComparedFile(Result, frozen=True, kw_only=True):
    """A file that some of the sessions have changed."""

    path: str
    outcomes: Annotated[
        tuple[int, ...],
        Meta(
            description="By session: 0 if it has not changed the file, else a number that is the"
            " same for equal outcomes."
        ),
    ]


class Comparison(Result, frozen=True, kw_only=True):
    """Result of `session_compare`. Files whose outcomes differ come first."""

    sessions: tuple[ComparedSession, ...]
    files: tuple[ComparedFile, ...]
    files_count: Annotated[int, Meta(description="Files that some session has changed.")]
    differing_count: Annotated[int, Meta(description="Those of them whose outcomes differ.")]


@tool(SessionCompare, Comparison, scope="read", read_only=True, runs_on="needed")
async def session_compare(
    services: ToolServices, context: CallContext, params: SessionCompare
) -> Comparison:
    """Compare what several sessions of a project have changed, each from before its first turn.

    Sessions in one workspace one after the other, or with workspaces of their own, may be compared.
    """
    project = await visible_project(services, context, params.project_id)
    if len(set(params.session_ids)) < len(params.session_ids):
        raise InvalidParameter("session_ids: name each session once", field="session_ids")
    sessions = [await visible_session(services, context, each) for each in params.session_ids]
    for each in sessions:
        if each.project_id != project.id:
            raise session_not_found(each.id)
    answers = [await _changes(services, each, params.paths) for each in sessions]
    results = [{each.path: each for each in answer.changes} for answer in answers]
    files = _files(results)
    differing = sum(_differs(each) for each in files)
    shown, _, _ = response_size.fitting(
        sorted(files, key=lambda each: (not _differs(each), each.path))[:MAX_FILES],
        response_size.MAX_PARTS // 2,
    )
    return Comparison(
        sessions=tuple(
            _view(session, answer, _same(sessions, results, place))
            for place, (session, answer) in enumerate(zip(sessions, answers, strict=True))
        ),
        files=tuple(shown),
        files_count=len(files),
        differing_count=differing,
    )


async def _changes(services: ToolServices, session: Session, paths: tuple[str, ...]) -> DiffAnswer:
    question = DiffQuestion(session_id=session.id, paths=paths)
    answer = await ask_history(services, session, question)
    assert isinstance(answer, DiffAnswer)
    return answer


def _outcome(change: FileChange) -> tuple[str | None, str]:
    """Return what a file is now: equal for equal content."""
    return change.new_mode, change.new_blob


def _files(results: list[dict[str, FileChange]]) -> list[ComparedFile]:
    found: list[ComparedFile] = []
    for path in sorted({path for each in results for path in each}):
        numbers: dict[tuple[str | None, str], int] = {}
        outcomes = [
            0
            if (change := each.get(path)) is None
            else numbers.setdefault(_outcome(change), len(numbers) + 1)
            for each in results
        ]
        found.append(ComparedFile(path=path, outcomes=tuple(outcomes)))
    return found


def _differs(file: ComparedFile) -> bool:
    return len(set(file.outcomes)) > 1


def _same(sessions: list[Session], results: list[dict[str, FileChange]], place: int) -> str | None:
    mine = {path: _outcome(change) for path, change in results[place].items()}
    for session, other in zip(sessions[:place], results[:place], strict=True):
        if mine == {path: _outcome(change) for path, change in other.items()}:
            return session.id
    return None


def _view(session: Session, answer: DiffAnswer, same_as: str | None) -> ComparedSession:
    return ComparedSession(
        session_id=session.id,
        workspace_id=session.workspace_id,
        agent=session.agent,
        status=session.status,
        turn_count=session.turn_count,
        cost_usd=session.cost_usd,
        snapshot=None if answer.between is None else answer.between.new_name,
        files=len(answer.changes),
        insertions=sum(each.insertions or 0 for each in answer.changes),
        deletions=sum(each.deletions or 0 for each in answer.changes),
        same_as=same_as,
    )
