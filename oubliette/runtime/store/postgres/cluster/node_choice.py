"""Choice of the node for a project, a pure function on plain data.

The node with the most room gets it: the one whose scarcest resource is the least scarce afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.runtime.store.postgres.cluster.node_records import NodeRecord, ProjectNeeds

_MIB: Final = 1024 * 1024


def choose_node(needs: ProjectNeeds, nodes: Iterable[NodeRecord]) -> NodeRecord:
    """The node with the most room among those that fit.

    Raises:
        Unavailable: none fits; the message has the reason of each.
    """
    reasons: dict[str, str] = {}
    fitting: list[NodeRecord] = []
    for node in nodes:
        reason = misfit(needs, node)
        if reason is None:
            fitting.append(node)
        else:
            reasons[node.name] = reason
    if not fitting:
        each = "; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()))
        raise Unavailable(
            f"no node can take the project ({each or 'there are no nodes'})",
            hint="ask for less, change the placement, or add a node",
        )
    return min(
        fitting,
        key=lambda node: (-room_after(needs, node), node.load.live_sessions, node.name),
    )


def misfit(needs: ProjectNeeds, node: NodeRecord) -> str | None:
    """Return why a node cannot take a project; None if it can."""
    if node.state != "running":
        return f"it is {node.state}"
    if node.lease_seconds <= 0:
        return "its lease has ended"
    return lacks(needs, node) or _is_full(taken_by(needs, node), node)


def lacks(needs: ProjectNeeds, node: NodeRecord) -> str | None:
    """Return what a node does not have at all, however much room there is; None: it has all."""
    offer = node.offer
    if needs.runtime is not None and needs.runtime not in offer.runtimes:
        return f"it has no container runtime {needs.runtime}"
    if needs.container_type is not None and needs.container_type not in offer.container_types:
        return f"it has no container type {needs.container_type}"
    for label, value in sorted(needs.labels.items()):
        if offer.labels.get(label) != value:
            return f"it has no label {label}={value}"
    return None


def _is_full(needs: ProjectNeeds, node: NodeRecord) -> str | None:
    """Return what a node does not have enough of now."""
    offer, load = node.offer, node.load
    if offer.live_sessions - load.live_sessions < needs.live_sessions:
        return f"{load.live_sessions} of {offer.live_sessions} sessions live on it"
    if offer.memory_bytes - load.memory_bytes < needs.memory_bytes:
        left = max(0, offer.memory_bytes - load.memory_bytes)
        return f"{left // _MIB} MiB are free, {-(-needs.memory_bytes // _MIB)} MiB are needed"
    # Containers share processors, which is slow at worst; one can use no more than there are.
    if offer.processors < needs.processors:
        return f"it has {offer.processors:g} processors, {needs.processors:g} are needed"
    return None


def taken_by(needs: ProjectNeeds, node: NodeRecord) -> ProjectNeeds:
    """Return what a project takes of a node, whose containers may have no limits."""
    if node.offer.limits_containers:
        return needs
    return msgspec.structs.replace(needs, memory_bytes=0, processors=0.0)


def room_after(needs: ProjectNeeds, node: NodeRecord) -> float:
    """The free share of the scarcest resource, once the project is there.

    It is at most 1, and negative where containers share processors.
    """
    offer, load, needs = node.offer, node.load, taken_by(needs, node)
    shares = (
        (offer.memory_bytes, load.memory_bytes + needs.memory_bytes),
        (offer.processors, load.processors + needs.processors),
        (offer.live_sessions, load.live_sessions + needs.live_sessions),
    )
    return min((1 - taken / has for has, taken in shares if has > 0), default=0.0)
