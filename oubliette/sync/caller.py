"""Caller, tools and permissions that a program provides under a name of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from oubliette.api.callers import caller as twins
    from oubliette.sync.portal_thread import PortalThread


class Caller:
    """A caller: it answers the calls of all sessions that were started with it.

    Calls of durable tools wait for it. A program that opens a caller of the same id later, after a
    crash for example, gets those that are open. Use as a context manager; made by
    `Oubliette.caller`.
    """

    def __init__(self, thread: PortalThread, twin: twins.Caller) -> None:
        self._thread = thread
        self.twin = twin
        """The asynchronous caller. For the package."""
        self.id = twin.id
        """Id of the caller."""

    def __enter__(self) -> Self:
        """Begin to answer, open requests first.

        Raises:
            BadTool: a tool cannot be offered.
            ConfigError: the file of answers cannot be used.
        """
        self._thread.call(self.twin.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Answer no more calls; those that are carried out are cancelled."""
        self._thread.call(lambda: self.twin.__aexit__(kind, error, traceback))
