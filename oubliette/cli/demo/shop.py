"""Shop, the demo's own tools: the agent calls them, and they run in the demo's process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from oubliette.cli.demo.lines import DemoOutput

CALLER: Final = "shop"
"""Id of the caller that provides them."""


class Shop:
    """A shop, whose public methods are tools."""

    def __init__(self, lines: DemoOutput) -> None:
        self._lines = lines
        self.is_asked: asyncio.Event = asyncio.Event()
        """Set when an approval is requested for the first time."""
        self.may_answer: asyncio.Event = asyncio.Event()
        """To be set when the server is back."""

    async def find_order(self, order: str) -> dict[str, Any]:
        """Look up an order.

        Args:
            order: Its number, such as A-17.
        """
        self._lines.say("caller", f"find_order({order}) runs here, in the demo's own process")
        return {"order": order, "total": 12.5, "state": "returned"}

    async def approve(self, order: str, refund: float) -> dict[str, Any]:
        """Approve a refund.

        Args:
            order: Its number.
            refund: In euros.
        """
        if not self.is_asked.is_set():
            self._lines.say(
                "caller",
                "approve(…) is requested; before it is answered, the server is killed with -9",
            )
            self.is_asked.set()
            await self.may_answer.wait()  # or until its caller is closed
            self._lines.say("caller", f"approve({order}, {refund}) is answered now")
            return {"approved": True, "order": order}
        self._lines.say(
            "caller", f"approve({order}, {refund}) was requested again and is answered now"
        )
        return {"approved": True, "order": order}
