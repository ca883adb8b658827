"""Trees of several roots: which one a new session joins, and with which limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oubliette import ids
from oubliette.actors.tree.limits import resolve_limits, tightened
from oubliette.errors import Conflict
from oubliette.records import Limits

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.messages import SpawnSession
    from oubliette.records import Project, Session


class JoinedTree(msgspec.Struct, frozen=True, kw_only=True):
    """A tree that several roots share, as a session that joins it records it."""

    tree_id: str
    project_id: str
    """Project in which it began."""
    limits: Limits
    """Limits in force."""
    given: Limits
    """Limits that were given for it, by the request that began it."""


async def joined_tree(
    context: ActorContext, project: Project, message: SpawnSession
) -> JoinedTree | None:
    """Return the tree that the message names; None: its session begins one of its own.

    The id is made of principal, project and the caller's own id of the tree, so that no
    principal joins the tree of another one.

    Raises:
        Conflict: the tree has other limits than the message gives.
    """
    asked = message.tree
    if asked is None:
        return None
    own = ids.derived_id(ids.EXPLORATION, message.principal, project.id, asked.id)
    page = await context.reader.sessions(exploration_id=own, limit=1)
    if not page.records:
        limits = tightened(resolve_limits(project.limits, context), asked.limits)
        return JoinedTree(tree_id=own, project_id=project.id, limits=limits, given=asked.limits)
    first = page.records[0]
    began = first.tree_limits or Limits()
    if asked.limits not in (Limits(), began):
        raise Conflict(_difference(asked.id, began, asked.limits), hint="leave tree.limits out")
    return JoinedTree(tree_id=own, project_id=project.id, limits=first.limits, given=began)


def forked_tree(session: Session, principal: str) -> JoinedTree | None:
    """Return the tree of several roots that a fork of a session joins; None: one of its own."""
    if session.tree_limits is None or session.principal != principal:
        return None
    return JoinedTree(
        tree_id=session.exploration_id,
        project_id=session.tree_project_id or session.project_id,
        limits=session.limits,
        given=session.tree_limits,
    )


def _difference(tree_id: str, began: Limits, asked: Limits) -> str:
    names = [
        name for name in Limits.__struct_fields__ if getattr(asked, name) != getattr(began, name)
    ]
    return (
        f"tree: {ids.shown(tree_id)} began with other limits, which its sessions share:"
        f" {', '.join(names)}"
    )
