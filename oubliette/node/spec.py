"""NodeSpec, the order to run a server as a node of a cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.runtime.containers import options, registry
from oubliette.runtime.store.postgres.cluster.node_records import NodeOffer

if TYPE_CHECKING:
    from oubliette.config.schema import Config
    from oubliette.kit.remote import Transport
    from oubliette.runtime.containers.base import ContainerRuntime

SESSION_BYTES: Final = 256 << 20
"""Memory that a live session is taken to need, where no maximum of sessions is configured."""
_MEMORY_FILE: Final = Path("/proc/meminfo")


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """The name of a node, and what carries its messages to the others."""

    name: str
    """Name of the node; unique in the cluster, and the same at each start."""
    transport: Transport
    """Carrier of messages; started by the server."""


def memory() -> tuple[int, int]:
    """Return the bytes of memory of this machine: all, and those that are taken."""
    fields = dict(
        line.split(":", 1) for line in _MEMORY_FILE.read_text(encoding="ascii").splitlines()
    )
    total, free = (int(fields[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    return total, total - free


def offer_of(config: Config, runtime: ContainerRuntime) -> NodeOffer:
    """Return what this machine offers to projects, with the container runtime that was chosen."""
    total, _ = memory()
    return NodeOffer(
        memory_bytes=total,
        processors=float(os.cpu_count() or 1),
        live_sessions=config.cluster.max_live_sessions or max(1, total // SESSION_BYTES),
        runtimes=(runtime.name,),
        container_types=options.types_of(config, images=runtime.capabilities.images),
        limits_containers=registry.find(runtime.name).limits,
        labels=dict(config.cluster.label_pairs()),
    )
