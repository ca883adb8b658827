"""FrontActor: started last, stopped first; it owns the listener's start and stop, no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from oubliette.kit import Actor, Message, Reply, handles

if TYPE_CHECKING:
    from oubliette.kit import Reason
    from oubliette.mcp_front.app import McpApp


class GetUrl(Message, Reply[str]):
    """Where clients connect to."""


class FrontEnded(Message):
    """Nothing answers MCP requests any more."""


class FrontActor(Actor):
    """Serves while it lives. Requests never pass through its mailbox."""

    shutdown: ClassVar[float] = 5.0

    def __init__(self, front: McpApp) -> None:
        super().__init__()
        self._front = front

    async def on_start(self) -> None:
        """Accept connections."""
        await self._front.start()
        self.pipe_to_self(self._front.ended(), ok=lambda _: FrontEnded(), err=_fail)

    async def on_exit(self, reason: Reason, error: BaseException | None) -> None:
        """End the listeners, then the server."""
        del reason, error
        await self._front.stop()

    @handles(GetUrl)
    def _url(self, _: GetUrl) -> str:
        return self._front.url

    @handles(FrontEnded)
    def _ended(self, _: FrontEnded) -> None:
        self.stop()


def _fail(error: BaseException) -> Message:
    """End the actor with this error: without the SDK there is no server."""
    raise error
