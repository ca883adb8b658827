"""What a session cannot reach, looked for from its inside."""

from __future__ import annotations

import contextlib
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.testing.server import ServerProcess
from tests.images import ensure_image
from tests.system.conftest import ROOMY
from tests.system.real_agents import remove_containers
from tests.system.site import Agent, Site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

LONG = 60.0  # seconds
FIND = "find / -name 'canary-*' -not -path '/proc/*' 2>/dev/null; true"
READ_ALL = "grep -rsl --include='canary-*' KEPT / 2>/dev/null; true"
SOCKETS = "find / -type s -not -path '/proc/*' 2>/dev/null; true"
OTHERS = (
    "for p in /proc/[0-9]*; do"
    " tr '\\0' '\\n' <$p/environ 2>/dev/null | grep '^OUBLIETTE_SESSION_ID='; done | sort -u"
)
ROOTS = "for p in /proc/[0-9]*; do ls $p/root/workspace 2>/dev/null; done | sort -u"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("process", marks=pytest.mark.requires("bubblewrap")),
        pytest.param("docker", marks=pytest.mark.requires("docker")),
    ],
)
async def place(
    request: pytest.FixtureRequest, zygote: Any, anyio_backend: str
) -> AsyncIterator[Site]:
    engine = request.param
    settings: dict[str, Any] = {**ROOMY, "containers.runtime": engine}
    if engine == "docker":
        settings["containers.image"] = ensure_image("docker")
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        site = Site(server)
        try:
            async with site.eyes:
                await site.open()
                yield site
                await site.tidy()
        finally:
            await server.kill()
            if engine == "docker":
                remove_containers("docker", server.instance())


class Inside:
    """One session and what it finds."""

    def __init__(self, site: Site, agent: Agent) -> None:
        self.site = site
        self.agent = agent

    @classmethod
    async def of(cls, site: Site, caller: Any, **more: Any) -> Inside:
        agent = await site.spawn(caller, "say ready", **more)
        assert await agent.turn(LONG) == ["ready"]
        return cls(site, agent)

    async def run(self, command: str) -> dict[str, Any]:
        return await self.agent.ask(f"exec {command}", LONG)

    async def lines(self, command: str) -> list[str]:
        return (await self.run(command))["stdout"].splitlines()

    async def workspace(self) -> Path:
        record = await self.agent.get()
        project = self.site.server.home / "projects" / record["project_id"]
        return project / "workspaces" / record["workspace_id"]


@contextlib.asynccontextmanager
async def canaries(*folders: Path) -> AsyncIterator[list[str]]:
    """A file in each folder whose name and content nobody can guess."""
    names = [f"canary-{secrets.token_hex(8)}" for _ in folders]
    for name, folder in zip(names, folders, strict=True):
        (folder / name).write_text("KEPT")
        (folder / name).chmod(0o644)
    try:
        yield names
    finally:
        for name, folder in zip(names, folders, strict=True):
            (folder / name).unlink(missing_ok=True)


@pytest.mark.whole
async def test_a_session_sees_its_project_and_nothing_else(place: Site) -> None:
    """Isolation off: another project, its socket, the server's home and the host are not there."""
    project, other = await place.new_project(), await place.new_project()
    async with place.caller("http-auto") as caller:
        here = await Inside.of(place, caller, project_id=project["id"])
        there = await Inside.of(place, caller, project_id=other["id"])
        own, foreign = await here.workspace(), await there.workspace()
        home = place.server.home
        async with canaries(
            own, foreign, foreign.parents[1], home, home / "logs", Path("/var/tmp")
        ) as (
            mine,
            *hidden,
        ):
            seen = await here.lines(FIND)
            assert [Path(path).name for path in seen] == [mine]
            assert await here.lines(READ_ALL) == seen
            for name in hidden:
                guess = await here.run(f"cat {foreign / name} {home / name} 2>&1")
                assert guess["exit_code"] != 0
        assert set(await here.lines(SOCKETS)) <= {"/mcp/relay.sock"}
        assert await here.lines(OTHERS) == [f"OUBLIETTE_SESSION_ID={here.agent.session_id}"]
        assert set(await here.lines("ls /home/agent")) <= {here.agent.session_id}


async def test_an_isolated_session_sees_its_workspace_alone(place: Site) -> None:
    """Isolation on: in a container of its own."""
    project = await place.new_project(workspace_isolation=True)
    async with place.caller("http-auto") as caller:
        more = {"project_id": project["id"], "create_workspace": True}
        here, there = await Inside.of(place, caller, **more), await Inside.of(place, caller, **more)
        own, foreign = await here.workspace(), await there.workspace()
        assert own.parent == foreign.parent
        async with canaries(own, foreign, own.parent, own.parents[1]) as (mine, *_):
            assert [Path(path).name for path in await here.lines(FIND)] == [mine]
            assert await here.lines("ls /workspace/workspaces") == [own.name]
            assert await here.lines(ROOTS) == await here.lines("ls /workspace")
        assert await here.lines(OTHERS) == [f"OUBLIETTE_SESSION_ID={here.agent.session_id}"]
        assert set(await here.lines(SOCKETS)) <= {"/mcp/relay.sock"}
        # What it writes for the agents of its workspace stays there as well.
        await here.agent.ask('call context_write {"descriptor": "x", "data": 1}', LONG)
        assert (await there.agent.ask("call context_list {}", LONG))["structured"]["entries"] == []


@pytest.mark.parametrize("isolated", [False, True])
async def test_the_context_of_a_workspace_is_at_workspace_rlm_context(
    place: Site, isolated: bool
) -> None:
    """Of the default workspace where all share a container, else of the container's own."""
    project = await place.new_project(workspace_isolation=isolated)
    async with place.caller("http-auto") as caller:
        here = await Inside.of(place, caller, project_id=project["id"])
        id_ = here.agent.session_id
        file = f"/workspace/.rlm-context/{id_}_part.json"
        assert (await here.run(f"sh -c 'echo 7 > {file}.tmp && mv {file}.tmp {file}'"))[
            "exit_code"
        ] == 0
        read = await here.agent.ask('call context_read {"descriptor": "part"}', LONG)
        assert [each["data"] for each in read["structured"]["entries"]] == [7]
        own = await here.workspace()
        assert json.loads((own / ".rlm-context" / f"{id_}_part.json").read_text()) == 7
        there = await Inside.of(place, caller, project_id=project["id"], create_workspace=True)
        seen = await there.lines("ls /workspace/.rlm-context")
        assert seen == ([] if isolated else [f"{id_}_part.json"])
        # What agents put in its place leads nowhere but inside.
        home = place.server.home
        async with canaries(home) as (hidden,):
            await here.run(f"sh -c 'rm -rf .rlm-context; ln -s {home} .rlm-context'")
            await here.agent.end()
            again = await Inside.of(place, caller, project_id=project["id"], new_session=True)
            assert hidden not in await again.lines("ls /workspace/.rlm-context/ 2>&1")


async def test_what_the_host_keeps_of_a_project_is_not_an_agents_to_change(place: Site) -> None:
    project = await place.new_project(description="as it was")
    async with place.caller("http-auto") as caller:
        here = await Inside.of(place, caller, project_id=project["id"])
        for file in ("metadata.json", "config.json"):
            await here.run(f"sh -c 'echo {{}} > /workspace/{file}; rm -f /workspace/{file}'")
        await here.run("ln -s /etc /workspace/workspaces/evil")
        told = await caller.call("project_get", project_id=project["id"])
        assert told["description"] == "as it was"
        await here.agent.end()
        again = await Inside.of(place, caller, project_id=project["id"])
        assert (await again.run("pwd"))["exit_code"] == 0


async def test_a_session_is_nobody_special_in_its_container(place: Site) -> None:
    async with place.caller("http-auto") as caller:
        here = await Inside.of(place, caller)
        status = dict(
            line.split(":\t", 1)
            for line in await here.lines("cat /proc/self/status")
            if ":\t" in line
        )
        assert {status[name].strip() for name in ("CapEff", "CapPrm", "CapAmb")} == {"0" * 16}
        assert status["NoNewPrivs"].strip() == "1"
        assert "0" not in status["Uid"].split()
        for command in (
            "cat /etc/shadow",
            "mount -t tmpfs none /tmp",
            "touch /usr/planted",
            f"ls {place.server.home}",
        ):
            assert (await here.run(f"sh -c '{command}'"))["exit_code"] != 0, command
        # The relay's key is gone, and its socket takes nobody without a secret.
        assert json.dumps(await here.lines("ls /mcp")).count("key") == 0
