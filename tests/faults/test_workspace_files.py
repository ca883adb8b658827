"""Files of a workspace over kills of the server and of the container."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.callers import ToolFailed
from tests.faults.here import Here

if TYPE_CHECKING:
    from oubliette.testing.server import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.whole, pytest.mark.timeout(120)]

PIECE = 300_000


async def send(caller: Here, content: bytes, first: int, last: int) -> dict[str, Any]:
    """Send the pieces from the first to the last one; the last of the content is the final one."""
    answer: dict[str, Any] = {}
    for offset in range(first * PIECE, min(last * PIECE, len(content)), PIECE):
        answer = await caller.call(
            "file_write",
            project_id=caller.project_id,
            path="large",
            data=base64.b64encode(content[offset : offset + PIECE]).decode(),
            upload="one",
            offset=offset,
            final=offset + PIECE >= len(content),
        )
    return answer


async def read(caller: Here, path: str) -> bytes:
    content, at = b"", 0
    while at is not None:
        page = await caller.call(
            "file_read", project_id=caller.project_id, path=path, offset=at, encoding="base64"
        )
        content += base64.b64decode(page["content"])
        at = page["next_offset"]
    return content


async def test_an_upload_goes_on_after_a_kill_of_the_server(any_server: ServerProcess) -> None:
    content = os.urandom(PIECE * 3 + 17)
    await any_server.start()
    async with Here(any_server) as caller:
        await send(caller, content, 0, 2)
        await any_server.kill()
        await any_server.start()
        with pytest.raises(ToolFailed, match="does not exist"):
            await read(caller, "large")
        assert (await send(caller, content, 2, 4))["size"] == len(content)
        assert await read(caller, "large") == content
        assert len(any_server.containers()) == 1


async def test_a_file_that_is_written_when_the_server_is_killed_is_old_or_new(
    any_server: ServerProcess,
) -> None:
    old, new = b"old" * 100_000, b"new" * 100_000
    await any_server.start()
    async with Here(any_server) as caller:
        await caller.call("file_write", project_id=caller.project_id, path="f", text=old.decode())
        writes = [
            asyncio.ensure_future(
                caller.call("file_write", project_id=caller.project_id, path="f", text=new.decode())
            )
            for _ in range(4)
        ]
        await asyncio.wait(writes, return_when=asyncio.FIRST_COMPLETED)
        await any_server.kill()
        await asyncio.gather(*writes, return_exceptions=True)
        await any_server.start()
        assert await read(caller, "f") in {old, new}
        page = await caller.call("file_list", project_id=caller.project_id)
        assert [e["name"] for e in page["entries"] if e["name"].startswith(".oubliette-")] == []
