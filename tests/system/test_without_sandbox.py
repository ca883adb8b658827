"""What a user hears where agents of root run without a sandbox, as users of their own."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from oubliette.testing.server import ServerProcess
from tests.callers import ToolFailed
from tests.system.conftest import ROOMY
from tests.system.site import Site

pytestmark = [pytest.mark.anyio, pytest.mark.requires("root"), pytest.mark.timeout(90)]


@pytest.fixture
def closed():
    """A program where no other user may go, as npm puts it below root's home."""
    with tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as folder:
        program = Path(folder) / "opencode"
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
        yield program


async def test_an_agents_program_out_of_its_reach_is_named_with_the_remedy(zygote, closed):
    settings = {
        **ROOMY,
        "containers.runtime": "process",
        "process.sandbox": "best-effort",
        "opencode.path": str(closed),
        "opencode.model": "any",
    }
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        site = Site(server)
        async with site.eyes:
            await site.open()
            async with site.caller("http-auto") as caller:
                agent = await site.spawn(caller, "say hello", agent="opencode")
                failed = await agent.event("error")
    assert f"{closed} cannot be started" in failed["message"]
    assert f"may not pass {closed.parent}" in failed["message"]
    assert "npm install -g opencode-ai" in failed["message"]


async def test_files_of_a_workspace_are_its_own_and_no_others_of_the_machine(zygote):
    settings = {**ROOMY, "containers.runtime": "process", "process.sandbox": "best-effort"}
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        site = Site(server)
        async with site.eyes:
            await site.open()
            made = await site.eyes.call("project_create", name="bare", init_git=False)

            async def call(tool, path, **more):
                return await site.eyes.call(tool, project_id=made["id"], path=path, **more)

            inside = f"/workspace/workspaces/{made['default_workspace_id']}"
            await call("file_write", "in/note", text="here")
            assert (await call("file_read", f"{inside}/in/note"))["content"] == "here"
            home = str(server.home)
            await site.eyes.call(
                "container_exec", project_id=made["id"], command=f"ln -s {home} home; ln -s / root"
            )
            for path in ("home/oubliette.db", f"root{home}/oubliette.db", "root/etc/passwd"):
                for tool, more in (("file_read", {}), ("file_write", {"text": "x"})):
                    with pytest.raises(ToolFailed, match="leads out of the workspace"):
                        await call(tool, path, **more)
