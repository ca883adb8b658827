"""Whether a server says that it is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.http_client import HttpClient

if TYPE_CHECKING:
    from oubliette.testing.server import ServerProcess


async def ready(server: ServerProcess) -> tuple[int, str]:
    """`/ready`, its status and body."""
    client = HttpClient(server.url)
    try:
        async with client.request("GET", path="/ready") as response:
            return response.status, (await response.body()).decode()
    finally:
        await client.aclose()
