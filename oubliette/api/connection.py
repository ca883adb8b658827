"""SystemConnection, through which the objects of this package call Oubliette's tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

POLL_SECONDS: Final = 25.0  # that a long poll waits for the first event
POLL_MARGIN: Final = 30.0  # seconds for the answer beyond that


class EventListener(Protocol):
    """Events of a caller's sessions, in the order of their commits; it answers their requests.

    Use as an async context manager.
    """

    cursor: int
    """Seq of the last event that was returned, for `after` of another listener."""

    async def __aenter__(self) -> Self:
        """Begin to listen."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it."""
        ...

    async def next(self, seconds: float) -> tuple[list[dict[str, Any]], str | None]:
        """Return the next events, none after `seconds`, and why the listener ended, if it did."""
        ...


class CallsTools(Protocol):
    """Means to call Oubliette's tools."""

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        on_progress: Callable[[str], object] | None = None,
    ) -> dict[str, Any]:
        """Call a tool, and return its result as JSON values.

        Args:
            tool: Its name.
            arguments: JSON values; those that are None count as absent.
            timeout: Seconds; 60 unless given.
            on_progress: Called with the progress of tools that report any.

        Raises:
            OublietteError: the tool failed; of the class that belongs to the error's code.
        """
        ...


class SystemConnection(CallsTools, Protocol):
    """Connection to a system: in this process, or over MCP."""

    def listener(self, caller_id: str, *, after: int | None) -> EventListener:
        """Return a listener to the events of a caller's sessions.

        Args:
            caller_id: Of the caller.
            after: Cursor of an earlier listener; None: open requests, then events from now on.
        """
        ...

    async def aclose(self) -> None:
        """Close the connection; sessions continue."""
        ...


class PollingListener:
    """Listener by long polls of `caller_listen`, over any connection."""

    def __init__(self, connection: SystemConnection, caller_id: str, after: int | None) -> None:
        self._connection = connection
        self._caller_id = caller_id
        self._after = after
        self.cursor = -1

    async def __aenter__(self) -> Self:
        """Poll once, so that open requests are not missed between two listeners."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do nothing: between two polls nothing is open."""

    async def next(self, seconds: float) -> tuple[list[dict[str, Any]], str | None]:
        """Return the next events, none after `seconds`, and why the listener ended, if it did."""
        page = await self._connection.call(
            "caller_listen",
            {"caller_id": self._caller_id, "after": self._after, "max_seconds": seconds},
            timeout=seconds + POLL_MARGIN,
        )
        self.cursor = self._after = page["next"]
        return list(page["events"]), page["ended"]
