"""The clients of docs/connecting.md work as they stand there, with an address and a key."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

from tests.requirements import program

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.system.conftest import Done
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


@pytest.mark.whole
@pytest.mark.requires("opencode")
@pytest.mark.timeout(200)
async def test_opencode_reaches_the_server_that_was_set_up_for_it(
    oubliette: Callable[..., Awaitable[Done]], tmp_path: Path
) -> None:
    """Its own `mcp list` connects to each server that its file has."""
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": ""}

    async def listed() -> str:
        process = await asyncio.create_subprocess_exec(
            program("opencode"), "mcp", "list",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"HOME": str(tmp_path), "PATH": os.environ["PATH"], "NO_COLOR": "1"},
            cwd=tmp_path,
        )  # fmt: skip
        try:
            async with asyncio.timeout(90):
                out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return out.decode()

    done = await oubliette("mcp", "setup", "opencode", **environ)
    assert done.code == 0, done.err
    assert "✓ oubliette" in (found := await listed()), found
    done = await oubliette("mcp", "setup", "opencode", "--remove", **environ)
    assert (done.code, "revoked" in done.err) == (0, True)
    assert "oubliette" not in await listed()
