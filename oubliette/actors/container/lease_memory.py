"""Leases of a container, and the memory of the agents that hold them."""

from __future__ import annotations

from oubliette.actors.container.memory_room import MemoryRoom


class LeaseMemory:
    """State that a ContainerActor keeps over its own restarts, and that no other actor uses.

    It is part of the actor's child spec, so it is lost with the server and with the supervisor.

    Args:
        memory_mb: the container's limit; None = there is no limit.
    """

    def __init__(self, memory_mb: int | None = None) -> None:
        self.leases: set[str] = set()
        """Ids of the sessions, and of the tool calls, that hold the container."""
        self.room = MemoryRoom(self.leases, memory_mb)
        """Memory of the container by agent of `leases`."""
