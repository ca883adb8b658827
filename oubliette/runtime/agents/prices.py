"""Prices of a model's tokens, for models whose prices only their owner has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from oubliette.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

Costs = Literal["agent", "prices", "unknown"]
"""Source of costs: the agent's own prices, those of the configuration, or none."""
KEYS: Final = ("price_input", "price_output", "price_cache_read", "price_cache_write")
"""Keys of an agent's section of the configuration."""
_MILLION: Final = 1_000_000


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars per million tokens."""

    input: float
    output: float
    cache_read: float
    cache_write: float

    def cost(self, read: int, written: int, cache_read: int, cache_write: int) -> float:
        """Return US dollars for so many tokens; `read` excludes those from and to the cache."""
        paid = read * self.input + written * self.output
        paid += cache_read * self.cache_read + cache_write * self.cache_write
        return paid / _MILLION


def prices_of(config: Mapping[str, Any], section: str) -> Prices | None:
    """Return the prices in a section, or None.

    Raises:
        ConfigError: the section has prices for a model whose prices the agent has.
    """
    given = [key for key in KEYS if config.get(key) is not None]
    if not given:
        return None
    if not config.get("base_url"):
        raise ConfigError(
            f"{section}.{given[0]}: prices the model at {section}.base_url, which is not set",
            hint="set base_url, or take the price out: agents know those of other models",
        )
    plain = float(config.get("price_input") or 0.0)
    cached = (config.get(key) for key in KEYS[2:])
    read, write = (plain if price is None else float(price) for price in cached)
    output = float(config.get("price_output") or 0.0)
    return Prices(input=plain, output=output, cache_read=read, cache_write=write)


def costs_of(config: Mapping[str, Any], prices: Prices | None) -> Costs:
    """Return the source of the costs of an agent that knows prices, but for a model of its own."""
    if prices is not None:
        return "prices"
    return "unknown" if config.get("base_url") else "agent"


def cost_fields(cost: float, costs: Costs) -> dict[str, Any]:
    """Return the fields of a cost in an event of usage; none, if it is unknown."""
    if costs == "unknown":
        return {}
    return {"cost_usd": cost, "measured": True} if costs == "prices" else {"cost_usd": cost}
