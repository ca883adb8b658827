"""Limits of a tree of sessions: the effective values, their sources and their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from oubliette.errors import LimitExceeded

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.tree.messages import Reserve
    from oubliette.records import Limits


def resolve_limits(limits: Limits, context: ActorContext) -> Limits:
    """Return `limits` with the configured defaults in the gaps."""
    trees = context.config.trees
    defaults = {name: getattr(trees, name) for name in limits.__struct_fields__}
    chosen = {name: getattr(limits, name) for name in limits.__struct_fields__}
    return msgspec.structs.replace(
        limits,
        **{name: chosen[name] if chosen[name] is not None else defaults[name] for name in chosen},
    )


def tightened(limits: Limits, given: Limits) -> Limits:
    """Return the lower one of each limit; None: it is not given. A cost of 0 is no limit."""
    chosen: dict[str, Any] = {}
    for name in limits.__struct_fields__:
        both: tuple[float | None, ...] = (getattr(limits, name), getattr(given, name))
        unlimited = 0 if name == "max_cost_usd" else None
        bounds = [each for each in both if each is not None and each != unlimited]
        chosen[name] = min(bounds) if bounds else both[0]
    return msgspec.structs.replace(limits, **chosen)


def limit_sources(limits: Limits, given: Limits | None = None) -> dict[str, str]:
    """The source of each limit: `tree`, `project` or `configuration`.

    `given` are the limits that were given for the tree, if several roots share it.
    """
    return {name: _source(name, limits, given) for name in limits.__struct_fields__}


def _source(name: str, limits: Limits, given: Limits | None) -> str:
    value = getattr(limits, name)
    if value is None:
        return "configuration"
    return "tree" if given is not None and getattr(given, name) == value else "project"


def exceeded(name: str, value: float | None, sources: dict[str, str], wanted: str) -> LimitExceeded:
    """The error of a request that would exceed a limit."""
    return LimitExceeded(
        f"{name}: the limit of this tree is {value} (set by the {sources[name]}), "
        f"{wanted} is above it"
    )


def refuse_above_limits(
    message: Reserve, limits: Limits, of_tree: Limits, used: dict[str, float]
) -> None:
    """Refuse a place for which there is no room.

    Args:
        message: The request.
        limits: Limits of the session in force.
        of_tree: Limits of the tree, as they were given.
        used: What the tree has used of them.

    Raises:
        LimitExceeded: names the limit.
    """
    sources = limit_sources(message.limits or of_tree, message.tree_limits)
    cost, age = used["max_cost_usd"], used["max_wall_seconds"]
    if message.depth > (limits.max_depth or 0):
        raise exceeded("max_depth", limits.max_depth, sources, f"depth {message.depth}")
    if message.new and used["max_agents"] >= (limits.max_agents or 0):
        raise exceeded("max_agents", limits.max_agents, sources, "one more agent")
    at_once = limits.max_agents_at_once
    if message.counts and used["max_agents_at_once"] >= (at_once or 0):
        raise exceeded("max_agents_at_once", at_once, sources, "one more at once")
    if limits.max_cost_usd is not None and cost >= limits.max_cost_usd > 0:
        raise exceeded("max_cost_usd", limits.max_cost_usd, sources, f"{cost:.2f} USD")
    if message.counts and age >= (limits.max_wall_seconds or 0):
        raise exceeded("max_wall_seconds", limits.max_wall_seconds, sources, f"{age:.0f} s")
