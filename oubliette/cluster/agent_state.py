"""The state of a node as its agent reported it last: a file in the node's home, and its words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.runtime.containers.host_paths import write_private

if TYPE_CHECKING:
    from pathlib import Path

AGENT_FILE: Final = "agent.json"


def write_state(home: Path, state: dict[str, Any]) -> None:
    """Record what an agent reports.

    Raises:
        OSError: the home cannot be written to.
    """
    home.mkdir(mode=0o700, exist_ok=True)  # the node itself may not have started yet
    write_private(home / AGENT_FILE, msgspec.json.encode(state))


def latest_state(home: Path) -> dict[str, Any] | None:
    """Return what the agent of a node reported last; None: it has none, or never reported."""
    try:
        return msgspec.json.decode((home / AGENT_FILE).read_bytes(), type=dict[str, Any])
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def troubles_of(state: dict[str, Any], now: float) -> list[str]:
    """Return lines about a node that is not ready, and about its latest failure.

    Args:
        state: as its agent reported it.
        now: seconds since 1970.
    """
    node = state["node"]
    lines: list[str] = []
    if not state.get("ready"):
        lines.append(f"{node}: {state['state']}: {state.get('error') or 'not ready'}")
    failure = state.get("failure")
    if failure is None:
        return lines
    line = f"{node}: failed {max(0.0, now - failure['at']):.0f} s ago: {failure['reason']}"
    if failure["count"] > 1:
        line += f"; {failure['count']} failures in a row"
    again = failure.get("again_at")
    if again is not None and not state.get("ready"):
        line += f"; starts again in {max(0.0, again - now):.0f} s"
    return [*lines, line]
