"""Status of a cluster for `oubliette cluster status`, as a table or as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from oubliette.cli.terminal.output import note, print_table

if TYPE_CHECKING:
    from oubliette.runtime.store.postgres.cluster.cluster_view import ClusterView, NodeView


def show(view: ClusterView, ray: dict[str, Any] | None, agents: list[dict[str, Any]]) -> None:
    """Print the table of nodes, and below it what is not in order; as for `as_json`."""
    from oubliette.cluster.agent_state import troubles_of

    print_table(
        ("NODE", "STATE", "LEASE", "EPOCH", "PROJECTS", "LIVE SESSIONS", "URL"),
        [_row(each) for each in view.nodes],
    )
    if view.held_events:
        note(
            f"log: {view.held_events} events wait for a transaction that is"
            f" {view.open_seconds:.1f} s old"
        )
    if ray is not None:
        note(
            f"Ray: {'runs' if ray['running'] else 'has ended'} at {ray['address'] or 'nowhere'};"
            f" agent: {'runs' if ray['agent'] else 'has ended'}"
        )
    for each in agents:
        for line in troubles_of(each, time.time()):
            note(line)


def _row(view: NodeView) -> tuple[object, ...]:
    node = view.node
    left = node.lease_seconds
    lease = f"{left:.0f} s" if left > 0 else f"ended {-left:.0f} s ago"
    return (
        node.name,
        node.state,
        lease,
        node.epoch,
        view.projects,
        view.live_sessions,
        node.address,
    )


def as_json(
    view: ClusterView, ray: dict[str, Any] | None, agents: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return what `cluster status -o json` prints.

    Args:
        view: The cluster in its database.
        ray: State of the trial cluster's processes; None: it is no trial cluster.
        agents: State of each node, as its agent has last seen it.
    """
    failures = {each["node"]: each.get("failure") for each in agents}
    return {
        "nodes": [
            {
                "node": each.node.name,
                "state": each.node.state,
                "draining": each.node.state == "draining",
                "lease_seconds": round(each.node.lease_seconds, 3),
                "epoch": each.node.epoch,
                "uptime_seconds": round(each.node.uptime_seconds, 3),
                "projects": each.projects,
                "live_sessions": each.live_sessions,
                "url": each.node.address,
                "failure": failures.get(each.node.name),
            }
            for each in view.nodes
        ],
        "log": {
            "held_events": view.held_events,
            "open_seconds": round(view.open_seconds, 3),
        },
        "ray": ray,
    }
