"""`PreparedTool`, the contract of all that agents can call, and the sources of such tools."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from oubliette.api.tools.context import Call


class PreparedTool(abc.ABC):
    """A tool that is ready to be offered to agents and to be run.

    Attributes:
        name: Its name without the caller's.
        description: For the agent.
        input_schema: JSON Schema of its arguments; of an object, self-contained.
        durable: Whether its calls wait for an absent caller.
        timeout: Seconds that `run` takes at most; None: as many as it likes.
        calls_on_loop: Whether it gets a `Call`, and uses it on the event loop, not in a thread.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    durable: bool = False
    timeout: float | None = None
    calls_on_loop: bool = False

    @property
    def definition(self) -> dict[str, Any]:
        """The entry of `caller_tools` for this tool."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
            "durable": self.durable,
        }

    @abc.abstractmethod
    async def run(self, arguments: dict[str, Any], call: Call) -> Any:
        """Carry out one call and return its result as JSON values.

        Args:
            arguments: as the agent gave them; they are checked here.
            call: marked as cancelled if this coroutine is cancelled, or its time is over.

        Raises:
            ToolCallRefused: there is no result; the message is for the agent.
        """


class ToolSource(abc.ABC):
    """A source of tools that has to be opened first, such as an MCP server."""

    @abc.abstractmethod
    async def open(self, stack: AsyncExitStack) -> list[PreparedTool]:
        """Open the source and return its tools, usable until `stack` is closed.

        Raises:
            BadTool: the source cannot be opened, or has a tool that cannot be offered.
        """
