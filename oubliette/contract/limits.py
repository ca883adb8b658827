"""Limits of a tree of sessions: what may be given, what is stored, the defaults; a shared tree."""

from __future__ import annotations

from typing import Annotated, get_type_hints

from msgspec import Meta

from oubliette.contract.field_types import Count, Params, ParamSeconds, Seconds

_Depth = Annotated[int, Meta(ge=0, le=100)]
LogBytes = Annotated[int, Meta(ge=0, le=1 << 60)]
"""Size of events; 0: no limit."""
_Dollars = Annotated[float, Meta(ge=0, le=1e9)]


class TreeLimits(Params, frozen=True, kw_only=True):
    """Limits of a tree of sessions; unset limits are those of the project, or of the server."""

    max_depth: Annotated[_Depth | None, Meta(description="Levels of children.")] = None
    max_agents: Annotated[
        Count | None, Meta(description="Agents in one tree, including ended ones.")
    ] = None
    max_agents_at_once: Annotated[Count | None, Meta(description="Live agents in one tree.")] = None
    max_cost_usd: Annotated[
        _Dollars | None, Meta(description="Cost of one tree, in US dollars.")
    ] = None
    max_wall_seconds: Annotated[
        ParamSeconds | None, Meta(description="Age of a tree, from the start of its root.")
    ] = None
    max_turn_seconds: Annotated[
        ParamSeconds | None, Meta(description="Time limit of one turn.")
    ] = None
    max_turn_steps: Annotated[Count | None, Meta(description="Steps of the model in one turn.")] = (
        None
    )


class Limits(TreeLimits, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Limits of one tree of sessions, as they are stored and shown; None: the configured default.

    They have no bounds: what another release has accepted is read as it is.
    """

    max_agents: Annotated[int | None, Meta(description="Agents in the tree.")] = None
    max_agents_at_once: Annotated[int | None, Meta(description="Live agents in the tree.")] = None
    max_cost_usd: Annotated[float | None, Meta(description="Cost of the whole tree.")] = None
    max_wall_seconds: Annotated[
        float | None, Meta(description="Age of the tree, from the start of its root.")
    ] = None


_plain = get_type_hints(Limits)
# msgspec reads annotations when a class is first used, and prefers its own to those of its base.
Limits.__annotations__ = {
    name: Annotated[_plain[name], *hint.__metadata__]
    for name, hint in get_type_hints(Limits, include_extras=True).items()
}


class TreesConfig(Params, frozen=True, kw_only=True):
    """Default limits of a tree of sessions."""

    max_depth: _Depth = 3
    """Levels of children; 0: agents cannot spawn children."""
    max_agents: Count = 50
    """Maximum of agents in one tree, including ended ones."""
    max_agents_at_once: Count = 10
    """Maximum of live agents in one tree."""
    max_cost_usd: _Dollars = 10.0
    """Maximum cost of all agents of one tree together, as they report it, in US dollars."""
    max_wall_seconds: Seconds = 86_400.0
    """Maximum age of a tree, from the start of its root."""
    max_log_bytes: LogBytes = 4 * 1024**3
    """Size of the events of all sessions of one tree together, in bytes, above which the turn of a
    session that goes on writing is interrupted. 0: no limit."""
    max_turn_seconds: Seconds = 21_600.0
    """Time limit of one turn, including all that it waits for. Then the turn is interrupted and
    fails; the session continues."""
    max_turn_steps: Count = 500
    """Maximum of model steps in one turn, if the agent reports them. Then the turn is interrupted
    and fails; the session continues."""


class TreeParams(Params, frozen=True, kw_only=True):
    """A tree that the sessions share which one principal starts in one project with the same id."""

    id: Annotated[str, Meta(min_length=1, max_length=128, description="Id, chosen by you.")]
    limits: Annotated[
        TreeLimits | None,
        Meta(description="Limits, fixed by the first session; they only tighten the project's."),
    ] = None


SharedTreeParam = Annotated[
    TreeParams | None,
    Meta(
        description="Tree that a new session joins: all sessions that you start in the project"
        " with the same id, and their children, share its limits."
    ),
]
