"""Files of workspaces in containers of real engines, on a folder that the engine mounts."""

from __future__ import annotations

import base64
import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.containers.docker.client import Engine
from oubliette.testing.server import ServerProcess
from tests.callers import HttpCaller, ToolFailed
from tests.images import ensure_image

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    from oubliette.testing.fork_server import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

FLAVOURS = [pytest.param(each, marks=pytest.mark.requires(each)) for each in ("docker", "podman")]


class Tools:
    """The tools for files, and a shell, in one project's container."""

    def __init__(self, admin: HttpCaller, project: str) -> None:
        self.admin = admin
        self.project = project

    async def call(self, tool: str, path: str | None = None, **more: Any) -> dict[str, Any]:
        arguments = more if path is None else {"path": path, **more}
        return await self.admin.call(tool, project_id=self.project, **arguments)

    async def refused(self, tool: str, path: str, **more: Any) -> str:
        with pytest.raises(ToolFailed) as caught:
            await self.call(tool, path, **more)
        return str(caught.value)

    async def shell(self, command: str) -> str:
        done = await self.call("container_exec", command=command)
        assert done["exit_code"] == 0, done
        return str(done["stdout"])


@pytest.fixture(scope="module", params=FLAVOURS)
async def tools(
    request: pytest.FixtureRequest, zygote: Zygote, anyio_backend: str
) -> AsyncIterator[Tools]:
    flavour = request.param
    settings = {
        "containers.runtime": flavour,
        "containers.image": ensure_image(flavour),
        "containers.network": "none",
    }
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        label = f"dev.oubliette.instance={server.instance()}"
        try:
            async with HttpCaller(server.url, server.token("admin"), caller_id="admin") as admin:
                made = await admin.call("project_create", name="files", init_git=False)
                yield Tools(admin, str(made["id"]))
        finally:
            await server.kill()
            api = Engine(flavour).connect()
            for container in api.containers(all=True, filters={"label": [label]}):
                with contextlib.suppress(Exception):
                    api.remove_container(container["Id"], force=True, v=True)
            api.close()


async def test_files_belong_to_the_agents_and_come_back_byte_for_byte(tools: Tools) -> None:
    content = os.urandom(700_000)
    for offset in (0, 350_000):
        await tools.call(
            "file_write",
            "out/data.bin",
            data=base64.b64encode(content[offset : offset + 350_000]).decode(),
            upload="one",
            offset=offset,
            final=offset > 0,
        )
    owner = await tools.shell("stat -c %u out/data.bin out; id -u; ls -A out")
    assert len(set(owner.split()[:3])) == 1
    assert owner.split()[3:] == ["data.bin"]
    read, at = b"", 0
    while at is not None:
        page = await tools.call("file_read", "out/data.bin", offset=at)
        read += base64.b64decode(page["content"])
        at = page["next_offset"]
    assert read == content
    assert (await tools.call("file_delete", "out", recursive=True))["deleted"] == 2


async def test_links_devices_and_pipes_lead_nowhere(tools: Tools) -> None:
    await tools.shell(
        "ln -s /etc/passwd far; ln -s / rooted; ln -s /dev/zero zero; "
        " python3 -c 'import os; os.mkfifo(\"pipe\")';"
        ' echo in > real; ln -s "$OUBLIETTE_WORKSPACE/real" near'
    )
    for path in ("far", "rooted/etc/passwd", "zero", "rooted/proc/1/environ"):
        assert "leads out of the workspace" in await tools.refused("file_read", path)
        assert "leads out of the workspace" in await tools.refused("file_write", path, text="x")
    assert "not a regular file" in await tools.refused("file_read", "pipe")
    assert (await tools.call("file_read", "near"))["content"] == "in\n"


async def test_names_that_are_not_utf_8_cross_every_layer(tools: Tools) -> None:
    await tools.shell("mkdir latin && printf x > latin/$(printf 'caf\\351')")
    (entry,) = (await tools.call("file_list", "latin"))["entries"]
    name = base64.b64decode(entry["name_base64"])
    path = base64.b64encode(b"latin/" + name).decode()
    assert name == b"caf\xe9"
    assert (await tools.call("file_read", path_base64=path))["content"] == "x"
    await tools.call("file_delete", path_base64=path)


async def test_a_folder_that_agents_may_not_write_is_not_written(tools: Tools) -> None:
    await tools.call("file_write", "kept", text="old")
    await tools.shell("chmod 555 . && ! touch new 2>/dev/null || true")
    try:
        denied = await tools.shell("touch probe 2>/dev/null && echo may || echo denied")
        if denied == "denied\n":
            assert "not accessible" in await tools.refused("file_write", "kept", text="new")
    finally:
        await tools.shell("chmod 755 .")
    assert (await tools.call("file_read", "kept"))["content"] == "old"
