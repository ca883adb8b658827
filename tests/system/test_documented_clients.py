"""The clients of docs/connecting.md work as they stand there, with an address and a key."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

if TYPE_CHECKING:
    from tests.system.site import Site

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PAGE = (Path(__file__).parents[2] / "docs" / "connecting.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8080/mcp"


def block(language: str, beginning: str) -> str:
    found = re.findall(rf"(?ms)^```{language}\n(.*?)^```$", PAGE)
    (text,) = [each for each in found if each.startswith(beginning)]
    return text


async def test_the_python_client_creates_its_project(site: Site) -> None:
    program = block("python", "import asyncio")
    assert (program.count(ADDRESS), program.count("oub_…")) == (1, 1)
    program = program.replace(ADDRESS, site.server.url).replace("oub_…", site.principal())
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(40):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, "'name': 'first'" in out.decode()) == (0, True), out.decode()


async def test_the_request_without_an_sdk_opens_an_mcp_session(site: Site) -> None:
    """The words of the command of curl, sent by another client: not every machine has curl."""
    command = block("sh", "curl").replace("\\\n", " ").replace("$KEY", site.principal())
    words = shlex.split(command)
    assert words[:3] == ["curl", "-si", ADDRESS]
    options = list(zip(words[3::2], words[4::2], strict=True))
    headers = dict(value.split(": ", 1) for flag, value in options if flag == "-H")
    (body,) = [value for flag, value in options if flag == "-d"]
    assert len(options) == len(headers) + 1
    async with httpx2.AsyncClient(timeout=20) as client:
        answer = await client.post(site.server.url, content=body, headers=headers)
    assert (answer.status_code, "mcp-session-id" in answer.headers) == (200, True)
