"""Rows of a small cluster, as they are some time later: the tests do not wait for leases to end."""

from __future__ import annotations

from oubliette.runtime.store.postgres.cluster import nodes
from oubliette.runtime.store.postgres.cluster.node_records import NodeOffer
from oubliette.runtime.store.postgres.fence import NodeFence


def take(connection, name: str, address: str = "") -> NodeFence:
    """A node with a new epoch, which had the database long enough to declare others gone."""
    epoch = nodes.take_epoch(connection, name, address, NodeOffer())
    connection.execute(
        "UPDATE nodes SET steady_since = clock_timestamp() - interval '1 hour' WHERE name = %s",
        (name,),
    )
    return NodeFence(name, epoch)


def let_lease_end(connection, name: str) -> None:
    """As if the node had not renewed it for longer than it lasts."""
    connection.execute(
        "UPDATE nodes SET lease_until = clock_timestamp() - interval '0.1 s' WHERE name = %s",
        (name,),
    )


def add_session(connection, project_id: str, *, live: bool = True) -> str:
    """A session of a project, by a transaction of no node unless one is open."""
    name = f"gogol_{project_id}"
    connection.execute(
        "INSERT INTO sessions (id, project_id, workspace_id, principal, exploration_id, depth,"
        " status, live, updated_at, data)"
        " VALUES (%s, %s, 'w', 'p', 'e', 0, 'running', %s, 0, '{}')",
        (name, project_id, int(live)),
    )
    return name


def state_of(connection, name: str):
    """The row of one node."""
    (found,) = [node for node in nodes.all_nodes(connection) if node.name == name]
    return found
