"""The control link to a container's guest, as the SocketActor of the container publishes it.

The SocketActor alone has the `GuestConnectionState` and changes it. Actors that use the link
themselves have a `GuestConnection`, which only reads: it holds a socket of this process, so these
actors run on the machine of the container. A SessionActor has none, and asks by message.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oubliette.errors import ContainerLost, DeadlineExceeded
from oubliette.kit import LocalMessage, Ref, Reply

if TYPE_CHECKING:
    from oubliette.runtime.containers.base import ContainerInfo
    from oubliette.runtime.guest.control_link import ControlLink


@dataclass(frozen=True)
class ContainerRefs:
    """Refs of the actors of one container (by name: they reach restarted ones)."""

    socket: Ref
    """The SocketActor."""
    container: Ref
    """The ContainerActor."""


class GuestConnectionState:
    """State of a container's control link, which only the SocketActor changes.

    It outlives the restarts of that actor.
    """

    def __init__(self) -> None:
        self.link: ControlLink | None = None
        self.info: ContainerInfo | None = None
        self.draining = False
        self.why_lost: str | None = None
        self.changed = asyncio.Event()

    def started(self, info: ContainerInfo | None) -> None:
        """Record that a container runs, to which no link is open yet."""
        self.link, self.info, self.why_lost, self.draining = None, info, None, False

    def opened(self, link: ControlLink, info: ContainerInfo) -> None:
        self.link, self.info, self.why_lost = link, info, None
        self._wake()

    def closed(self) -> None:
        """Record that the link broke; another may follow."""
        self.link = None
        self._wake()

    def lost(self, reason: str) -> None:
        """Record that the container is gone, with everything that ran in it."""
        self.link, self.why_lost = None, reason
        self._wake()

    def drains(self) -> None:
        """Record that the guest was asked to drain, and ends all that runs there."""
        self.draining = True

    def _wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class GuestConnection:
    """Read-only view of the control link of one container."""

    __slots__ = ("_state",)

    def __init__(self, state: GuestConnectionState | None = None) -> None:
        self._state = state or GuestConnectionState()

    @property
    def current(self) -> ControlLink | None:
        """The link, if one is open now."""
        return self._state.link

    @property
    def info(self) -> ContainerInfo | None:
        """The container that runs, or that ran last."""
        return self._state.info

    @property
    def draining(self) -> bool:
        """Whether the guest was asked to drain, and ends all that runs there."""
        return self._state.draining

    @property
    def why_lost(self) -> str | None:
        """Reason why the container is gone, if it is."""
        return self._state.why_lost

    async def wait(self, timeout: float, *, next_container: bool = False) -> ControlLink:
        """The link as soon as there is one.

        Raises:
            ContainerLost: the container is gone; not with `next_container`, which waits for the
                container that comes next.
            DeadlineExceeded: no link within `timeout` seconds.
        """
        state = self._state
        try:
            async with asyncio.timeout(timeout):
                while state.link is None:
                    if state.why_lost is not None and not next_container:
                        raise ContainerLost(state.why_lost)
                    await state.changed.wait()
                return state.link
        except TimeoutError:
            raise no_answer(timeout) from None

    async def wait_changed(self, timeout: float) -> None:
        """Return at the next change of the link's state, at most after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._state.changed.wait()
        except TimeoutError:
            return


class GetGuestConnection(LocalMessage, Reply[GuestConnection]):
    """To the SocketActor: request for the view of its link."""


def no_answer(seconds: float) -> DeadlineExceeded:
    """The error for a guest to which no link was open within so many seconds."""
    return DeadlineExceeded(f"the guest in the container did not answer within {seconds:.0f} s")
