"""Parameters about trees of sessions: their limits, and a tree that several roots share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from oubliette.contract.field_types import Params


class TreeLimits(Params, frozen=True, kw_only=True):
    """Limits of a tree of sessions; unset limits are those of the project, or of the server."""

    max_depth: Annotated[
        Annotated[int, Meta(ge=0, le=100)] | None, Meta(description="Levels of children.")
    ] = None
    max_agents: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Meta(description="Agents in one tree, including ended ones."),
    ] = None
    max_agents_at_once: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Meta(description="Live agents in one tree."),
    ] = None
    max_cost_usd: Annotated[
        Annotated[float, Meta(ge=0, le=1e9)] | None,
        Meta(description="Cost of one tree, in US dollars."),
    ] = None
    max_wall_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=1e7)] | None,
        Meta(description="Age of a tree, from the start of its root."),
    ] = None
    max_turn_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=1e7)] | None,
        Meta(description="Time limit of one turn."),
    ] = None
    max_turn_steps: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Meta(description="Steps of the model in one turn."),
    ] = None


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
