"""Where the actors of one unit find the control link to its container's host.

The SocketActor owns the link and opens and closes the gate; agent processes and session links
wait here for it. It holds no messages: it is the one thing that the actors of a unit share.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from oubliette.actors.container.memory_room import MemoryRoom
from oubliette.errors import ContainerLost, DeadlineExceeded

if TYPE_CHECKING:
    from oubliette.actors.session.messages import OpenLink
    from oubliette.kit import Ref
    from oubliette.runtime.containers.base import ContainerInfo
    from oubliette.runtime.guest.control_link import ControlLink


class GuestConnection:
    """Open while an authenticated control link is there."""

    def __init__(
        self,
        socket: Ref,
        container: Ref,
        *,
        accept_bare: bool = False,
        memory_mb: int | None = None,
    ) -> None:
        self.socket = socket
        """The SocketActor (named: a restarted one is found)."""
        self.container = container
        """The ContainerActor."""
        self.accept_bare = accept_bare
        """Whether sessions have a link for clients without a secret too."""
        self.info: ContainerInfo | None = None
        self.leases: set[str] = set()
        """Session ids that hold the container; kept over a restart of its actor."""
        self.memory = MemoryRoom(self.leases, memory_mb)
        """Who has how much of the container's memory; the agents of `leases`."""
        self.links: dict[str, OpenLink] = {}
        """Session id → the link that it wants; kept over a restart of the SocketActor."""
        self.draining = False
        """The host has been told to end, and ends all that runs there."""
        self._link: ControlLink | None = None
        self._lost: str | None = None
        self._changed = asyncio.Event()

    def opened(self, link: ControlLink, info: ContainerInfo) -> None:
        """A link is there."""
        self._link, self.info, self._lost = link, info, None
        self._wake()

    def closed(self) -> None:
        """The link broke; another may follow."""
        self._link = None
        self._wake()

    def lost(self, reason: str) -> None:
        """The container is gone, and what ran in it with it."""
        self._link, self._lost = None, reason
        self._wake()

    @property
    def is_lost(self) -> bool:
        """Whether the container is gone."""
        return self._lost is not None

    @property
    def why_lost(self) -> str | None:
        """Why the container is gone, where it is."""
        return self._lost

    def starting(self) -> None:
        """A container is about to start: who waits, waits for it."""
        self._lost = None
        self.draining = False

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @property
    def current(self) -> ControlLink | None:
        """The link, if there is one now."""
        return self._link

    async def wait(self, timeout: float, *, next_container: bool = False) -> ControlLink:
        """The link, as soon as there is one.

        Raises:
            ContainerLost: the container is gone; not with `next_container`, which waits for
                whatever container comes next.
            DeadlineExceeded: no link within `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while self._link is None:
                    if self._lost is not None and not next_container:
                        raise ContainerLost(self._lost)
                    await self._changed.wait()
                return self._link
        except TimeoutError:
            raise DeadlineExceeded(
                f"the host in the container did not answer within {timeout:.0f} s"
            ) from None

    async def wait_changed(self, timeout: float) -> None:
        """Return at the next change of the gate, at most after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return
