"""Tools that show trees of sessions: `tree_get`."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.contract.overview import TreeRow, TreeState
from oubliette.errors import InvalidParameter
from oubliette.records import TERMINAL, made_of
from oubliette.tools.event_queries import sessions_with_titles
from oubliette.tools.handlers.limits import limits_of_tree
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.handlers.sessions import visible_session, waits_of
from oubliette.tools.schema.response_size import fitting
from oubliette.tools.schema.views import model_of
from oubliette.tools.spec import tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oubliette.runtime.store.queries import TreeMember
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

ROWS: Final = 200


class TreeGet(Params, frozen=True, kw_only=True):
    """Parameters of `tree_get`."""

    session_id: Annotated[field_types.SessionId, Meta(description="Any session of the tree.")]
    limit: Annotated[field_types.PageSize, Meta(description="Maximum number of rows.")] = ROWS
    cursor: Annotated[
        field_types.Cursor | None, Meta(description="next_cursor of the previous page.")
    ] = None


@tool(TreeGet, TreeState, scope="read", read_only=True)
async def tree_get(services: ToolServices, context: CallContext, params: TreeGet) -> TreeState:
    """Show the tree of a session: who works below whom, what each waits for, cost and limits.

    The limits count the whole tree, the rows are the sessions that the key reaches.
    """
    session = await visible_session(services, context, params.session_id)
    project = await visible_project(services, context, session.project_id)
    members = await services.reader.tree_members(session.exploration_id)
    shown = list(_below_each_other([m for m in members if context.scope.reaches(m.project_id)]))
    start = _place_after(params.cursor, shown)
    wanted = shown[start : start + params.limit]
    ids = [member.id for _, member in wanted]
    records = await services.reader.run(sessions_with_titles, ids)
    waits = await waits_of(services, list(records.values()))
    there = {member.id for _, member in shown}
    rows, _, cut = fitting(
        made_of(
            record,
            TreeRow,
            session_id=record.id,
            level=level,
            parent_session_id=_if_shown(member.parent_session_id, there),
            model=model_of(services.config, record),
            waiting=waits.get(record.id, ()),
        )
        for level, member in wanted
        if (record := records.get(member.id)) is not None
    )
    more = cut or start + params.limit < len(shown)
    return TreeState(
        exploration_id=session.exploration_id,
        sessions=len(members),
        live=sum(each.status not in TERMINAL for each in members),
        cost_usd=sum(each.cost_usd for each in members),
        limits=await limits_of_tree(services, project, session, members),
        rows=tuple(rows),
        next_cursor=rows[-1].session_id if more and rows else None,
    )


def _if_shown(session_id: str | None, there: set[str]) -> str | None:
    return session_id if session_id in there else None


def _below_each_other(members: Sequence[TreeMember]) -> Iterator[tuple[int, TreeMember]]:
    """Yield each session with its level, children after their parent.

    One whose parent is not among them, such as a session in a project that the key does not reach,
    is at the top.
    """
    children: defaultdict[str | None, list[TreeMember]] = defaultdict(list)
    there = {each.id for each in members}
    for each in members:
        parent = each.parent_session_id
        children[parent if parent in there else None].append(each)
    left = [(0, each) for each in reversed(children[None])]
    while left:
        level, each = left.pop()
        yield level, each
        left += [(level + 1, child) for child in reversed(children[each.id])]


def _place_after(cursor: str | None, shown: Sequence[tuple[int, TreeMember]]) -> int:
    """Return the place of the first row behind the cursor.

    Raises:
        InvalidParameter: its session is not in the tree, or not any more.
    """
    if cursor is None:
        return 0
    for place, (_, member) in enumerate(shown, 1):
        if member.id == cursor:
            return place
    raise InvalidParameter(
        "cursor: is no session of the tree any more; begin again without it", field="cursor"
    )
