"""FrontActor, which starts and stops the HTTP listener.

It is the last actor to start and the first to stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from oubliette.kit import Actor, Message, Reply, handles

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.kit import Reason
    from oubliette.mcp_front.app import McpApp


class GetUrl(Message, Reply[str]):
    """Request for the URL that clients connect to."""


class FrontEnded(Message):
    """Notice that MCP requests are not answered any more."""


class FrontLoaded(Message):
    """Notice that listeners are answered from now on."""


class FrontActor(Actor):
    """Owner of the front: it serves from its start to its end. Requests bypass its mailbox.

    Args:
        front: The application.
        on_loaded: Called when it can answer listeners.
    """

    shutdown: ClassVar[float] = 5.0

    def __init__(self, front: McpApp, on_loaded: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._front = front
        self._on_loaded = on_loaded

    async def on_start(self) -> None:
        """Accept connections."""
        await self._front.start()
        self.pipe_to_self(self._front.loaded(), ok=lambda _: FrontLoaded(), err=_fail)
        self.pipe_to_self(self._front.ended(), ok=lambda _: FrontEnded(), err=_fail)

    async def on_exit(self, reason: Reason, error: BaseException | None) -> None:
        """End the listeners, then the server."""
        del reason, error
        await self._front.stop()

    @handles(GetUrl)
    def _url(self, _: GetUrl) -> str:
        return self._front.url

    @handles(FrontLoaded)
    def _loaded(self, _: FrontLoaded) -> None:
        self._on_loaded()

    @handles(FrontEnded)
    def _ended(self, _: FrontEnded) -> None:
        self.stop()


def _fail(error: BaseException) -> Message:
    """Make the actor fail with this error: without the SDK no requests can be served."""
    raise error
