"""Leases of a container, and the memory of the agents that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.actors.container.memory_room import MemoryRoom

if TYPE_CHECKING:
    from collections.abc import Iterable


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

    def hold(self, session_id: str, need: int, *, starts: bool) -> bool:
        """Give a session a lease, and return whether its agent has memory.

        Args:
            session_id: the session, or the tool call.
            need: MB that its agent needs; 0: they are not counted.
            starts: whether its agent is about to start. One that runs is counted in any case.
        """
        self.leases.add(session_id)
        if not need:
            return True
        if starts:
            return self.room.take_now(session_id, need)
        self.room.count(session_id, need)
        return True

    def give_back(self, session_id: str) -> None:
        """Take a session's lease and the memory of its agent back."""
        self.leases.discard(session_id)
        self.room.given_back(session_id)

    def keep(self, session_ids: Iterable[str]) -> None:
        """Drop the leases of all but these sessions, which are those that live.

        Others were given back, and tool calls have failed, while no actor was there.
        """
        for session_id in self.leases.difference(session_ids):
            self.give_back(session_id)

    def adopt(self, session_ids: Iterable[str]) -> None:
        """Give leases to the sessions whose agents run in an adopted container."""
        self.leases.update(session_ids)

    def held_by_others(self, session_id: str = "") -> bool:
        """Whether another than this session holds the container."""
        return bool(self.leases - {session_id})
