"""Usage of a model: what the agent reports of single steps, added up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import msgspec

from oubliette.contract.events import SystemEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oubliette.contract.events import Event


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a model by one turn, or by several that were added with `+`."""

    cost_usd: float | None = None
    """Cost in US dollars; None if the agent reports no costs."""
    input_tokens: int = 0
    """Tokens that the model read."""
    output_tokens: int = 0
    """Tokens that the model wrote."""
    tokens: int = 0
    """Tokens altogether: the sum of both, or what an agent reports that does not divide them."""

    def __post_init__(self) -> None:
        """Add both up where the sum is not given, as in the state of a session."""
        if not self.tokens:
            msgspec.structs.force_setattr(self, "tokens", self.input_tokens + self.output_tokens)

    def __add__(self, other: Usage) -> Usage:
        """Return the usage of both; a cost that only one of them knows is the cost of both."""
        costs = [each for each in (self.cost_usd, other.cost_usd) if each is not None]
        return Usage(
            cost_usd=sum(costs) if costs else None,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            tokens=self.tokens + other.tokens,
        )


NOTHING_USED = Usage()


def usage_of(events: Iterable[Event]) -> Usage:
    """Return the sum of what `system` events of the kind `usage` report."""
    total = NOTHING_USED
    for event in events:
        if isinstance(event, SystemEvent) and event.kind == "usage":
            total += usage_from(event.data)
    return total


def usage_from(data: Mapping[str, Any]) -> Usage:
    """Return the usage that one event reports; fields of wrong types count as not reported."""
    cost = data.get("cost_usd")
    used, written = _count(data.get("input_tokens")), _count(data.get("output_tokens"))
    return Usage(
        cost_usd=_dollars(cost),
        input_tokens=used,
        output_tokens=written,
        tokens=max(_count(data.get("tokens")), used + written),
    )


def _count(value: object) -> int:
    return max(0, value) if type(value) is int else 0


def _dollars(value: object) -> float | None:
    if type(value) not in {int, float}:
        return None
    try:
        cost = float(cast("float", value))
    except OverflowError:
        return None
    return cost if math.isfinite(cost) and cost >= 0 else None
