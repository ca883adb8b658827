"""Tool that shows limits and their use: `config_limits`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.contract.overview import LimitState
from oubliette.errors import InvalidParameter
from oubliette.records import TERMINAL
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.handlers.sessions import visible_session
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oubliette.records import Limits, Project, Session
    from oubliette.runtime.store.queries import TreeMember
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext


class ConfigLimits(Params, frozen=True, kw_only=True):
    """Parameters of `config_limits`."""

    project_id: Annotated[
        field_types.ProjectId | None,
        Meta(description="Show the limits of the project's next tree."),
    ] = None
    session_id: Annotated[
        field_types.SessionId | None,
        Meta(
            description="Show the limits of the session's tree, as fixed at the start of its root."
        ),
    ] = None


class LimitsResult(Result, frozen=True, kw_only=True):
    """Result of `config_limits`."""

    limits: dict[str, LimitState]
    depth: Annotated[int | None, Meta(description="Depth of the session; a root has 0.")]
    remaining_depth: Annotated[int, Meta(description="Levels of children that it may still have.")]
    exploration_id: str | None


@tool(ConfigLimits, LimitsResult, scope="read", read_only=True)
async def config_limits(
    services: ToolServices, context: CallContext, params: ConfigLimits
) -> LimitsResult:
    """Show the limits of a project or of a session's tree, and how much of them is used."""
    session_id, project_id = params.session_id, params.project_id
    if session_id is None and project_id is None:
        session_id = context.session_id
        project_id = context.scope.project if session_id is None else None
    if session_id is not None:
        session = await visible_session(services, context, session_id)
        if project_id not in {None, session.project_id}:
            raise InvalidParameter(
                "project_id: the session belongs to another project; give one of the two",
                field="project_id",
            )
        project = await visible_project(services, context, session.project_id)
        return await _of_session(services, project, session)
    if project_id is None:
        raise InvalidParameter(
            "project_id: is required; give project_id or session_id", field="project_id"
        )
    project = await visible_project(services, context, project_id)
    limits = await _per_project(services, project)
    limits.update(_tree(services, project.limits, project.limits, {}))
    return LimitsResult(
        limits=limits,
        depth=None,
        remaining_depth=int(limits["max_depth"].value),
        exploration_id=None,
    )


async def _of_session(services: ToolServices, project: Project, session: Session) -> LimitsResult:
    tree = await services.reader.tree_members(session.exploration_id)
    limits = await limits_of_tree(services, project, session, tree)
    return LimitsResult(
        limits=limits,
        depth=session.depth,
        remaining_depth=max(0, int(limits["max_depth"].value) - session.depth),
        exploration_id=session.exploration_id,
    )


async def limits_of_tree(
    services: ToolServices, project: Project, session: Session, tree: Sequence[TreeMember]
) -> dict[str, LimitState]:
    """Return the limits of a tree, as one of its sessions and its project have them.

    Args:
        services: Of all tools.
        project: Of the session.
        session: Of the tree.
        tree: All sessions of it, oldest first.
    """
    began = next((each.created_at for each in tree if each.parent_session_id is None), None)
    if began is None:
        began = session.created_at
    used: dict[str, int | float] = {
        "max_depth": session.depth,
        "max_agents": len(tree),
        "max_agents_at_once": sum(each.status not in TERMINAL for each in tree),
        "max_cost_usd": sum(each.cost_usd for each in tree),
        "max_wall_seconds": max(0.0, services.clock.time() - began),
    }
    limits = await _per_project(services, project)
    given = session.tree_limits
    limits.update(_tree(services, session.limits, project.limits, used, given))
    return limits


def _tree(
    services: ToolServices,
    frozen: Limits,
    project: Limits,
    used: dict[str, int | float],
    given: Limits | None = None,
) -> dict[str, LimitState]:
    states: dict[str, LimitState] = {}
    for name in frozen.__struct_fields__:
        default: Any = getattr(services.config.trees, name)
        value: Any = getattr(frozen, name)
        if value is None:
            value = default
        source = "tree"
        if given is None or getattr(given, name) != value:
            # A tree keeps what it began with, in another project too.
            held = {default: "configuration", getattr(project, name): "project"}
            source = held.get(value, source)
        states[name] = _state(value, source, used.get(name))
    return states


async def _per_project(services: ToolServices, project: Project) -> dict[str, LimitState]:
    live = await services.reader.count_live_sessions(project.id)
    return {
        "max_live_sessions": _state(
            services.config.sessions.max_live_per_project, "configuration", live
        )
    }


def _state(value: float, source: str, used: float | None) -> LimitState:
    left = None if used is None else max(0, value - used)
    return LimitState(value=value, source=source, used=used, left=left)
