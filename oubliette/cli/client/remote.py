"""RemoteServer, through which a command calls tools of a server elsewhere, with a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from oubliette.api.http import HttpConnection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import httpx2

T = TypeVar("T")


class RemoteServer:
    """A server elsewhere. Each call has a connection of its own, and is not repeated.

    Args:
        url: from `address.address`.
        key: from `address.key_of`.
        timeout: timeout of each answer in seconds.
    """

    def __init__(self, url: httpx2.URL, key: str, timeout: float) -> None:
        self._url = str(url)
        self._key = key
        self._timeout = timeout

    def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool; raises what `HttpConnection.call` does."""
        return self._ask(lambda remote: remote.call(tool, arguments, timeout=self._timeout))

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools that the key may call, as in `tools/list`. Raises what `call` does."""
        return self._ask(HttpConnection.tools)

    def _ask(self, question: Callable[[HttpConnection], Awaitable[T]]) -> T:
        async def ask() -> T:
            async with HttpConnection(
                self._url, self._key, timeout=self._timeout, reconnect_seconds=0
            ) as remote:
                return await question(remote)

        return anyio.run(ask)
