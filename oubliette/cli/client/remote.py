"""RemoteServer, through which a command calls tools of a server elsewhere, with a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from oubliette.api.control import CALL_SECONDS
from oubliette.api.http import HttpConnection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import httpx2

    from oubliette.api.control import ProgressCallback

T = TypeVar("T")


class RemoteServer:
    """A server elsewhere, a `ToolServer`. A connection is made for each call, and none repeated.

    Args:
        url: from `address.address`.
        key: from `address.key_of`.
    """

    def __init__(self, url: httpx2.URL, key: str) -> None:
        self._url = str(url)
        self._key = key

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        timeout: float = CALL_SECONDS,
        *,
        on_progress: ProgressCallback | None = None,
    ) -> dict[str, Any]:
        """Call a tool; raises what `HttpConnection.call` does. See `ToolServer.call`."""
        return self._ask(
            lambda remote: remote.call(tool, arguments, timeout=timeout, on_progress=on_progress),
            timeout,
        )

    def tools(self, timeout: float = CALL_SECONDS) -> list[dict[str, Any]]:
        """The tools that the key may call, as in `tools/list`. Raises what `call` does."""
        return self._ask(HttpConnection.tools, timeout)

    def _ask(self, question: Callable[[HttpConnection], Awaitable[T]], timeout: float) -> T:
        async def ask() -> T:
            async with HttpConnection(
                self._url, self._key, timeout=timeout, reconnect_seconds=0
            ) as remote:
                return await question(remote)

        return anyio.run(ask)
