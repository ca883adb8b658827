"""Tool `session_log`: the turns of a session, with the snapshots of its workspace."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from oubliette.contract import field_types
from oubliette.contract.changes import CommitInfo, TurnLog, TurnSnapshotInfo
from oubliette.contract.field_types import Params
from oubliette.errors import InvalidParameter
from oubliette.runtime.snapshots.history_records import LogAnswer, LogQuestion
from oubliette.tools.event_queries import turn_costs
from oubliette.tools.handlers.repository.agent_commits import (
    ask_history,
    check_cloned,
    fetched_commits,
)
from oubliette.tools.handlers.sessions import visible_session
from oubliette.tools.schema import response_size
from oubliette.tools.schema.views import model_of
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette.actors.merge_requests import AgentCommitsFetched
    from oubliette.records import Session, Turn
    from oubliette.runtime.snapshots.history_records import TurnChanges
    from oubliette.runtime.snapshots.snapshot_names import NamedSnapshot
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext


ALL: Final = 2**53
"""More than the events of any log."""


class SessionLog(Params, frozen=True, kw_only=True):
    """Parameters of `session_log`."""

    session_id: Annotated[field_types.SessionId, Meta(description="Id of the session.")]
    limit: Annotated[int, Meta(ge=1, le=200, description="Maximum number of turns to return.")] = 50
    cursor: Annotated[
        field_types.Cursor | None, Meta(description="next_cursor of the previous page.")
    ] = None
    commits: Annotated[
        bool,
        Meta(
            description="Also list what was committed in the workspace since it was cloned; the"
            " container is started for it."
        ),
    ] = False


class TurnPage(Result, frozen=True, kw_only=True):
    """Result of `session_log`."""

    session_id: str
    agent: str
    model: str | None
    turns: tuple[TurnLog, ...]
    commits: Annotated[
        tuple[CommitInfo, ...],
        Meta(description="With commits, on the first page: newest first, at most 500."),
    ]
    next_cursor: str | None


@tool(SessionLog, TurnPage, scope="read", read_only=True, runs_on="needed")
async def session_log(services: ToolServices, context: CallContext, params: SessionLog) -> TurnPage:
    """List the turns of a session, oldest first, with what each has changed and its snapshots."""
    session = await visible_session(services, context, params.session_id)
    commits: tuple[CommitInfo, ...] = ()
    if params.commits and params.cursor is None:
        await check_cloned(services, context, session)
        commits = _commit_views(await fetched_commits(services, session))
    after = _after(params.cursor)
    every = await services.reader.turns(session.id)
    turns = [each for each in every if each.number > after]
    page = turns[: params.limit]
    answer = await ask_history(
        services,
        session,
        LogQuestion(session_id=session.id, turns=tuple(each.number for each in page)),
    )
    assert isinstance(answer, LogAnswer)
    costs = await _costs(services, session, every)
    changes = {each.turn: each for each in answer.changes}
    views, _, cut = response_size.fitting(
        _view(
            each,
            changes.get(each.number),
            costs.get(each.number),
            [found for found in answer.snapshots if found.turn == each.number],
        )
        for each in page
    )
    more = cut or len(page) < len(turns)
    return TurnPage(
        session_id=session.id,
        agent=session.agent,
        model=model_of(services.config, session),
        turns=tuple(views),
        commits=commits,
        next_cursor=str(views[-1].turn) if more else None,
    )


async def _costs(services: ToolServices, session: Session, turns: list[Turn]) -> dict[int, float]:
    """The cost of each turn in US dollars, as far as its agent has reported it."""
    begun = [each for each in turns if each.cost_before is not None]
    costs: dict[int, float] = {}
    if turns and turns[0].state == "done" and (not begun or begun[0].number > turns[0].number):
        # Turns of an earlier release: the log alone has what they cost.
        before = begun[0].began_index if begun else None
        costs = await services.reader.run(turn_costs, session.id, before or ALL)
    marks = [*(each.cost_before or 0.0 for each in begun), session.cost_usd]
    for turn, (start, end) in zip(begun, pairwise(marks), strict=True):
        cost = round(end - start, 9)
        if cost > 0:
            costs[turn.number] = cost
    return costs


def _commit_views(found: AgentCommitsFetched) -> tuple[CommitInfo, ...]:
    views, _, _ = response_size.fitting(found.commits, response_size.MAX_PARTS // 2)
    return tuple(views)


def _after(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not cursor.isdecimal() or len(cursor) > 10:
        raise InvalidParameter("cursor: give next_cursor of the previous page", field="cursor")
    return int(cursor)


def _view(
    turn: Turn,
    changes: TurnChanges | None,
    cost: float | None,
    snapshots: list[NamedSnapshot],
) -> TurnLog:
    return TurnLog(
        turn=turn.number,
        prompt=response_size.cut(turn.prompt, response_size.SHORT_TEXT),
        status=turn.outcome or turn.state,
        created_at=turn.created_at,
        cost_usd=cost,
        files=None if changes is None else changes.files,
        insertions=None if changes is None else changes.insertions,
        deletions=None if changes is None else changes.deletions,
        snapshots=tuple(
            TurnSnapshotInfo(
                name=each.name,
                moment=each.moment,
                commit=each.commit,
                committed_at=each.committed_at,
            )
            for each in snapshots
        ),
    )
