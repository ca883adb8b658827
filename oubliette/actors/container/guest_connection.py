"""The control link to a container's guest, shared by the actors of the container.

The SocketActor owns the link and reports its opening and closing here; agent processes and session
links wait here for it. It holds no messages: it is the only object that the actors of a container
share.
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
    """The control link of one container, while an authenticated one is open."""

    def __init__(
        self,
        socket: Ref,
        container: Ref,
        *,
        accept_bare: bool = False,
        memory_mb: int | None = None,
    ) -> None:
        self.socket = socket
        """Ref of the SocketActor (by name: it reaches a restarted one)."""
        self.container = container
        """Ref of the ContainerActor."""
        self.accept_bare = accept_bare
        """Whether sessions also have a link for clients without a secret."""
        self.info: ContainerInfo | None = None
        self.leases: set[str] = set()
        """Session ids that hold the container; kept over a restart of its actor."""
        self.memory = MemoryRoom(self.leases, memory_mb)
        """Memory of the container by agent of `leases`."""
        self.links: dict[str, OpenLink] = {}
        """Session id → the link that it requested; kept over a restart of the SocketActor."""
        self.draining = False
        """Whether the guest was asked to drain, and ends all that runs there."""
        self._link: ControlLink | None = None
        self._lost: str | None = None
        self._changed = asyncio.Event()

    def opened(self, link: ControlLink, info: ContainerInfo) -> None:
        """Record that a link is open."""
        self._link, self.info, self._lost = link, info, None
        self._wake()

    def closed(self) -> None:
        """Record that the link broke; another may follow."""
        self._link = None
        self._wake()

    def lost(self, reason: str) -> None:
        """Record that the container is gone, with everything that ran in it."""
        self._link, self._lost = None, reason
        self._wake()

    @property
    def is_lost(self) -> bool:
        """Whether the container is gone."""
        return self._lost is not None

    @property
    def why_lost(self) -> str | None:
        """Reason why the container is gone, if it is."""
        return self._lost

    def starting(self) -> None:
        """Record that a container is about to start: waiters wait for that one."""
        self._lost = None
        self.draining = False

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @property
    def current(self) -> ControlLink | None:
        """The link, if one is open now."""
        return self._link

    async def wait(self, timeout: float, *, next_container: bool = False) -> ControlLink:
        """Return the link as soon as there is one.

        Raises:
            ContainerLost: the container is gone; not with `next_container`, which waits for the
                container that comes next.
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
        """Return at the next change of the link's state, at most after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return
