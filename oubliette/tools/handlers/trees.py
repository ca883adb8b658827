"""Tools that show trees of sessions: `tree_list`, `tree_get`."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.contract.overview import TreeInfo, TreePage, TreeRow, TreeState, TreeWait
from oubliette.errors import InvalidParameter
from oubliette.records import TERMINAL, made_of
from oubliette.tools.event_queries import newest_line, sessions_with_titles
from oubliette.tools.handlers.limits import limits_of_tree
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.handlers.sessions import visible_session, waits_of
from oubliette.tools.schema.response_size import fitting
from oubliette.tools.schema.views import model_of
from oubliette.tools.spec import tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oubliette.records import Session
    from oubliette.runtime.store.queries import TreeMember
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

ROWS: Final = 200
MAX_TREES: Final = 200
MAX_READ: Final = 20
"""Logs of a tree that are looked at for its newest line, those of the newest live sessions."""
_QUIET: Final = frozenset({"child", "ended", "message"})
"""Waits that need no attention."""


class TreeGet(Params, frozen=True, kw_only=True):
    """Parameters of `tree_get`."""

    session_id: Annotated[field_types.SessionId, Meta(description="Any session of the tree.")]
    limit: Annotated[field_types.PageSize, Meta(description="Maximum number of rows.")] = ROWS
    cursor: Annotated[
        field_types.Cursor | None, Meta(description="next_cursor of the previous page.")
    ] = None


class TreeList(Params, frozen=True, kw_only=True):
    """Parameters of `tree_list`."""

    project_id: Annotated[
        field_types.ProjectId | None,
        Meta(description="Only trees with live sessions of this project."),
    ] = None
    limit: Annotated[int, Meta(ge=1, le=MAX_TREES, description="Maximum number to return.")] = 50


@tool(TreeList, TreePage, scope="read", read_only=True)
async def tree_list(services: ToolServices, context: CallContext, params: TreeList) -> TreePage:
    """List the trees in which sessions live, newest first: cost, waits, newest line of each."""
    project_id = context.scope.project
    if params.project_id is not None:
        project_id = (await visible_project(services, context, params.project_id)).id
    living: defaultdict[str, list[Session]] = defaultdict(list)
    for session in await services.reader.live_sessions(project_id):
        living[session.exploration_id].append(session)
    newest = sorted(living.values(), key=lambda each: each[0].id, reverse=True)
    chosen = newest[: params.limit]
    found = await asyncio.gather(*(_tree(services, context, each) for each in chosen))
    trees, _, cut = fitting(found)
    return TreePage(trees=tuple(trees), more=cut or len(newest) > len(chosen))


async def _tree(services: ToolServices, context: CallContext, live: list[Session]) -> TreeInfo:
    """Describe a tree.

    Args:
        services: Of all tools.
        context: Of the call.
        live: Its sessions that live and that the key reaches, oldest first.
    """
    first = min(live, key=lambda each: each.depth)
    ids = {first.root_session_id, first.id}
    records = await services.reader.run(sessions_with_titles, ids)
    root = records.get(first.root_session_id)
    if root is None or not context.scope.reaches(root.project_id):
        root = records.get(first.id, first)
    members = await services.reader.tree_members(first.exploration_id)
    waits = await waits_of(services, live)
    line = await services.reader.run(newest_line, [each.id for each in live[-MAX_READ:]])
    limit = first.limits.max_cost_usd
    if limit is None:
        limit = services.config.trees.max_cost_usd
    return TreeInfo(
        exploration_id=first.exploration_id,
        session_id=root.id,
        project_id=root.project_id,
        agent=root.agent,
        title=root.title,
        created_at=root.created_at,
        sessions=len(members),
        live=len(live),
        cost_usd=sum(each.cost_usd for each in members),
        max_cost_usd=limit or None,
        waiting=tuple(
            made_of(wait, TreeWait, session_id=session_id)
            for session_id, found in waits.items()
            for wait in found
            if wait.kind not in _QUIET
        ),
        newest=None if line is None else line[1],
        newest_at=None if line is None else line[0],
    )


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
