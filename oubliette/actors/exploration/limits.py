"""Limits of a tree of sessions: the effective values, their sources and their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oubliette.errors import LimitExceeded

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
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


def limit_sources(limits: Limits) -> dict[str, str]:
    """Return the source of each limit: `project` or `configuration`."""
    return {
        name: "configuration" if getattr(limits, name) is None else "project"
        for name in limits.__struct_fields__
    }


def exceeded(name: str, value: float | None, sources: dict[str, str], wanted: str) -> LimitExceeded:
    """Return the error of a request that would exceed a limit."""
    return LimitExceeded(
        f"{name}: the limit of this tree is {value} (set by the {sources[name]}), "
        f"{wanted} is above it"
    )
