"""Memory of an agent by kind, for the number of agents in a container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oubliette.config.schema import Config

NEEDS: Final = {"scripted": 20, "droid": 400, "opencode": 500, "opencode-acp": 500}
"""MB of one process of each kind with its children, as measured; rounded up."""
UNKNOWN: Final = 400


def need_of(config: Config, agent: str, runtime: object = None) -> int:
    """Return MB for one agent: `agents.memory`, else its runtime's `memory_mb`, else `NEEDS`."""
    for entry in config.agents.memory:
        name, _, value = entry.rpartition("=")
        if name == agent:
            return int(value)
    declared = getattr(runtime, "memory_mb", None)
    return declared if isinstance(declared, int) and declared > 0 else NEEDS.get(agent, UNKNOWN)
