"""Images and container types on real engines, over a whole server: built, fetched, chosen, wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.runtime.containers.docker.client import Engine
from oubliette.testing.server import ServerProcess
from tests.callers import HttpCaller, ToolFailed
from tests.conformance.registry import Registry
from tests.images import ensure_image

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from oubliette.testing.fork_server import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]

FLAVOURS = [pytest.param(each, marks=pytest.mark.requires(each)) for each in ("docker", "podman")]
TURN = 60.0  # seconds


class House:
    """A server on an engine, and what it is to be asked."""

    def __init__(self, flavour: Any, server: ServerProcess, images: list[str]) -> None:
        self.flavour = flavour
        self.server = server
        self.images = images
        self.api = Engine(flavour).connect()
        self.admin = HttpCaller(server.url, server.token("admin"), caller_id="admin")

    def containers(self) -> list[dict[str, Any]]:
        label = f"dev.oubliette.instance={self.server.instance()}"
        return self.api.containers(all=True, filters={"label": [label]})

    def image_id(self, name: str) -> str:
        return str(self.api.inspect_image(name)["Id"])

    async def project(self, name: str, **more: Any) -> str:
        made = await self.admin.call("project_create", name=name, init_git=False, **more)
        return str(made["id"])

    async def run(self, project: str, command: str) -> dict[str, Any]:
        return await self.admin.call("container_exec", project_id=project, command=command)

    def close(self) -> None:
        for container in self.containers():
            with contextlib.suppress(Exception):
                self.api.remove_container(container["Id"], force=True, v=True)
        for image in self.images:
            with contextlib.suppress(Exception):
                self.api.remove_image(image, force=True)
        self.api.close()


@contextlib.asynccontextmanager
async def house_of(flavour: str, zygote: Zygote, **settings: object) -> AsyncIterator[House]:
    base = ensure_image(flavour)
    dev = f"localhost/oubliette/dev:{uuid.uuid4().hex[:12]}"
    everything = {
        "containers.runtime": flavour,
        "containers.image": base,
        "containers.dev_image": dev,
        "containers.network": "none",
        "containers.build_args": f"BASE_IMAGE={base},INSTALL_PACKAGES=0",
        **settings,
    }
    async with ServerProcess(zygote=zygote, settings=everything) as server:
        await server.start()
        house = House(flavour, server, [dev])
        try:
            async with house.admin:
                yield house
        finally:
            await server.kill()
            house.close()


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_the_image_of_a_type_is_built_used_and_built_again(
    flavour: str, zygote: Zygote
) -> None:
    async with house_of(flavour, zygote) as house:
        options = await house.admin.call("project_options")
        assert options["container_types"] == ["base", "dev"]
        project = await house.project("shop", container_type="dev")
        with pytest.raises(ToolFailed) as missing:
            await house.admin.call("container_start", project_id=project)
        assert house.images[0] in str(missing.value)

        built = await house.admin.call("image_rebuild", container_type="dev")
        assert (built["image"], built["state"]) == (house.images[0], "built")
        assert "FROM" in built["log_tail"] or "STEP" in built["log_tail"]
        assert len(built["log_tail"]) <= 4000
        await house.admin.call("container_start", project_id=project)
        (container,) = house.containers()
        assert container["ImageID"] == house.image_id(house.images[0])

        refreshed = await house.admin.call("container_refresh", project_id=project)
        assert (refreshed["image"], refreshed["state"]) == (house.images[0], "local")
        assert not house.containers()
        assert (await house.run(project, "ls -d /workspace"))["stdout"] == "/workspace\n"
        with pytest.raises(ToolFailed, match="base, dev"):
            await house.admin.call("container_refresh", container_type="nothing")


@contextlib.asynccontextmanager
async def writable_house(flavour: str, zygote: Zygote, folder: Path) -> AsyncIterator[House]:
    """A house with a container type in which agents can install something."""
    name = f"localhost/oubliette/open:{uuid.uuid4().hex[:12]}"
    recipe = (
        "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN mkdir -p /opt/tools && chmod 1777 /opt/tools\n"
    )
    (folder / "Dockerfile").write_text(recipe)
    settings = {
        "containers.read_only": False,
        "container_types.open.build_dir": folder,
        "container_types.open.image": name,
    }
    async with house_of(flavour, zygote, **settings) as house:
        house.images.append(name)
        await house.admin.call("image_rebuild", container_type="open")
        yield house


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_what_was_installed_is_in_the_next_containers_of_the_project(
    flavour: str, zygote: Zygote, tmp_path: Path
) -> None:
    async with writable_house(flavour, zygote, tmp_path) as house:
        project, other = [
            await house.project(name, container_type="open") for name in ("shop", "other")
        ]
        with pytest.raises(ToolFailed, match="no container runs"):
            await house.admin.call("container_snapshot", project_id=project)
        install = "echo tool > /opt/tools/one && echo work > work"
        assert (await house.run(project, install))["exit_code"] == 0
        stored = await house.admin.call("container_snapshot", project_id=project, name="tools.1")
        house.images.append(stored["image"])
        assert stored["image"] == f"localhost/oubliette-snapshots/{project}:tools.1".lower()
        assert stored["size_bytes"] > 0

        await house.admin.call("container_stop", project_id=project)
        seen = await house.run(project, "cat /opt/tools/one work")
        assert seen["stdout"] == "tool\nwork\n"
        (container,) = house.containers()
        assert container["ImageID"] == house.image_id(stored["image"])
        assert (await house.run(other, "ls /opt/tools/one"))["exit_code"] != 0

        await house.server.kill()
        await house.server.start()
        assert (await house.run(project, "cat /opt/tools/one"))["stdout"] == "tool\n"
        await house.admin.call("container_refresh", project_id=project)
        assert (await house.run(project, "ls /opt/tools/one"))["exit_code"] != 0
        assert not house.api.images(name=stored["image"])


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_images_of_containers_go_with_their_project(
    flavour: str, zygote: Zygote, tmp_path: Path
) -> None:
    async with writable_house(flavour, zygote, tmp_path) as house:
        project = await house.project("shop", container_type="open")
        await house.run(project, "echo 1 > /opt/tools/one")
        stored = await house.admin.call("container_snapshot", project_id=project)
        house.images.append(stored["image"])
        await house.run(project, "echo 2 > /opt/tools/one")
        await house.admin.call("container_snapshot", project_id=project, name="second")
        await house.admin.call("project_delete", project_id=project)
        label = f"dev.oubliette.snapshot-of={project}"
        assert not house.api.images(filters={"label": [label]})


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_nothing_can_be_installed_in_a_read_only_container(
    flavour: str, zygote: Zygote
) -> None:
    async with house_of(flavour, zygote) as house:
        project = await house.project("shop")
        with pytest.raises(ToolFailed, match="their image is read-only"):
            await house.admin.call("container_snapshot", project_id=project)


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_build_removes_the_image_that_it_replaces(
    flavour: str, zygote: Zygote, tmp_path: Path
) -> None:
    name = f"localhost/oubliette/replaced:{uuid.uuid4().hex[:12]}"
    types = {"container_types.mine.build_dir": tmp_path, "container_types.mine.image": name}
    async with house_of(flavour, zygote, **types) as house:
        made: list[str] = []
        for number in (1, 2, 3):
            recipe = f"ARG BASE_IMAGE\nFROM ${{BASE_IMAGE}}\nLABEL {name[-12:]}={number}\n"
            (tmp_path / "Dockerfile").write_text(recipe)
            await house.admin.call("image_rebuild", container_type="mine")
            made.append(house.image_id(name))
            if number == 2:
                house.api.tag(made[1], name.partition(":")[0], f"kept-{name[-12:]}")
        left = {each["Id"] for each in house.api.images(all=True)} & set(made)
        assert left == {made[1], made[2]}  # what somebody has named is theirs
        for each in left:
            house.api.remove_image(each, force=True)


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_build_that_fails_says_why_and_leaves_nothing(
    flavour: str, zygote: Zygote, tmp_path: Path
) -> None:
    mark = uuid.uuid4().hex
    (tmp_path / "Dockerfile").write_text(
        f"ARG BASE_IMAGE\nFROM ${{BASE_IMAGE}}\nLABEL mark={mark}\n"
        "RUN echo the package index is not reachable >&2; exit 9\n"
    )
    name = f"localhost/oubliette/failing:{mark[:12]}"
    async with house_of(
        flavour,
        zygote,
        **{"container_types.broken.build_dir": tmp_path, "container_types.broken.image": name},
    ) as house:
        before = {each["Id"] for each in house.api.containers(all=True)}
        with pytest.raises(ToolFailed) as failed:
            await house.admin.call("image_rebuild", container_type="broken")
        said = str(failed.value)
        assert name in said
        assert "9" in said
        assert "the package index is not reachable" in said
        assert "BASE_IMAGE" in said  # the remedy
        left = [
            each
            for each in house.api.containers(all=True)
            if each["Id"] not in before and each.get("Labels", {}).get("mark") == mark
        ]
        assert not left
        assert not house.api.images(name=name)
        for image in house.api.images(all=True, filters={"label": [f"mark={mark}"]}):
            house.images.append(image["Id"])  # layers to begin with, the next time


@pytest.mark.requires("docker")  # accepts a registry without TLS on this machine
async def test_a_registrys_image_is_fetched_again_and_what_is_wrong_with_it_is_named(
    zygote: Zygote,
) -> None:
    with Registry() as registry:
        async with house_of(
            "docker",
            zygote,
            **{
                "container_types.shop.image": registry.image,
                "container_types.gone.image": f"{registry.address}/shop/gone:1",
            },
        ) as house:
            house.images.append(registry.image)
            fetched = await house.admin.call("container_refresh", container_type="shop")
            assert (fetched["image"], fetched["state"]) == (registry.image, "fetched")
            assert "of 2 layers" in fetched["log_tail"]
            house.image_id(registry.image)
            with pytest.raises(ToolFailed) as gone:
                await house.admin.call("container_refresh", container_type="gone")
            assert "no such image" in str(gone.value)
            assert gone.value.structured["error"]["code"] == "image_not_found"
            project = await house.project("gone", container_type="gone")
            with pytest.raises(ToolFailed, match="no such image"):
                await house.admin.call("container_start", project_id=project)
            with pytest.raises(ToolFailed, match="comes from a registry"):
                await house.admin.call("image_rebuild", container_type="shop")


async def log_until(house: House, session_id: str, found: Any) -> list[dict[str, Any]]:
    """What a session's log says until an event is what was waited for."""
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(TURN):
        while not any(found(event) for event in events):
            page = await house.admin.call(
                "session_events",
                session_id=session_id,
                since_index=events[-1]["index"] if events else -1,
                wait_seconds=TURN,
            )
            events += page["events"]
    return events


def of_stage(state: str, **fields: str) -> Any:
    def matches(event: dict[str, Any]) -> bool:
        return (
            event.get("kind") == "stage"
            and event["state"] == state
            and all(text in str(event.get(name)) for name, text in fields.items())
        )

    return matches


@pytest.mark.requires("docker")
async def test_a_session_that_waits_for_an_image_is_told_how_far_it_is_and_what_the_image_lacks(
    zygote: Zygote,
) -> None:
    with Registry() as registry:
        registry.hold.clear()
        settings = {"container_types.shop.image": registry.image}
        async with house_of("docker", zygote, **settings) as house:
            house.images.append(registry.image)
            project = await house.project("shop", container_type="shop")
            spawn = asyncio.create_task(
                house.admin.call("session_spawn", project_id=project, prompt="say hello")
            )
            try:
                async with asyncio.timeout(TURN):
                    session = str((await spawn)["session_id"])
                await log_until(
                    house, session, of_stage("progress", stage="image", detail="of 2 layers")
                )
                registry.hold.set()
                # the image holds one file and nothing to run
                events = await log_until(house, session, lambda event: event["type"] == "error")
            finally:
                spawn.cancel()
            assert any(map(of_stage("done", stage="image"), events))
            failed = next(filter(of_stage("failed", stage="start"), events))
            assert f"the image {registry.image} needs python3" in failed["remedy"]
            assert not house.containers()


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_an_agents_program_is_the_images_or_both_ways_to_get_it_are_named(
    flavour: str, zygote: Zygote, tmp_path: Path
) -> None:
    """`acp` stands for all agents with a program: it takes any that speaks."""
    name = f"localhost/oubliette/with-agent:{uuid.uuid4().hex[:12]}"
    (tmp_path / "Dockerfile").write_text(
        "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\n"
        "RUN printf '#!/bin/sh\\necho it ran >&2; exit 9\\n' >/usr/local/bin/my-agent;"
        " chmod 755 /usr/local/bin/my-agent\n"
    )
    settings = {"acp.command": "my-agent", "droid.path": "image"}
    types = {"container_types.agents.build_dir": tmp_path, "container_types.agents.image": name}
    async with house_of(flavour, zygote, **settings, **types) as house:
        house.images.append(name)
        await house.admin.call("image_rebuild", container_type="agents")
        seen = {}
        for agent, kind in (("acp", "base"), ("droid", "base"), ("acp", "agents")):
            project = await house.project(f"{agent} {kind}", container_type=kind)
            spawned = await house.admin.call(
                "session_spawn", project_id=project, prompt="say hello", agent=agent
            )
            events = await log_until(
                house, str(spawned["session_id"]), lambda event: event["type"] == "error"
            )
            seen[agent, kind] = "\n".join(map(str, events))
        for agent in ("acp", "droid"):
            told = seen[agent, "base"]
            assert "cannot be started in its container" in told, told
            assert "image that has it" in told
            assert "program of this machine that is mounted" in told
        assert "it ran" in seen["acp", "agents"] or "9" in seen["acp", "agents"]
        assert "cannot be started in its container" not in seen["acp", "agents"]


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_types_and_projects_are_closed_as_their_tables_say(
    flavour: str, zygote: Zygote
) -> None:
    settings = {
        "containers.pids": 333,
        "container_types.wide.pids": 444,
        "container_types.wide.read_only": "false",
        "container_types.wide.cap_add": "NET_BIND_SERVICE",
        "project_containers.special.nofile": 555,
        "project_containers.special.uid": 4321,
    }
    async with house_of(flavour, zygote, **settings) as house:
        options = await house.admin.call("project_options")
        assert options["container_types"] == ["base", "dev", "wide"]
        look = (
            "ulimit -Hn; grep CapBnd /proc/self/status; grep -c ' / .* ro[, ]' /proc/mounts; id -u"
        )
        seen = {}
        for name, kind in (("plain", "base"), ("wide", "wide"), ("special", "wide")):
            project = await house.project(name, container_type=kind)
            seen[name] = (await house.run(project, look))["stdout"].split()
            (found,) = [
                each
                for each in house.containers()
                if each["Labels"]["dev.oubliette.project"] == project
            ]
            pids = house.api.inspect_container(found["Id"])["HostConfig"]["PidsLimit"]
            assert pids == (333 if kind == "base" else 444)
        bit = f"{1 << 10:016x}"
        assert seen["plain"][:4] == ["8192", "CapBnd:", "0" * 16, "1"]
        assert seen["wide"][:4] == ["8192", "CapBnd:", bit, "0"]
        assert seen["special"][:4] == ["555", "CapBnd:", bit, "0"]
        if os.geteuid() == 0:
            assert seen["special"][4] == "4321"
            assert seen["wide"][4] != "4321"
        with pytest.raises(ToolFailed, match="base, dev, wide"):
            await house.project("typo", container_type="wdie")

        # a changed option of one table makes those containers anew that it is about, and no other
        before = {
            each["Labels"]["dev.oubliette.project"]: each["Id"] for each in house.containers()
        }
        await house.server.kill()
        await house.server.start(settings={"container_types.wide.pids": 445})
        async with HttpCaller(
            house.server.url, house.server.token("admin"), caller_id="again"
        ) as admin:
            for project in before:
                await admin.call("container_exec", project_id=project, command="true")
            projects = (await admin.call("project_list"))["projects"]
        names = {project["id"]: project["name"] for project in projects}
        for container in house.containers():
            project = container["Labels"]["dev.oubliette.project"]
            kept = container["Id"] == before[project]
            assert kept is (names[project] == "plain")
            pids = house.api.inspect_container(container["Id"])["HostConfig"]["PidsLimit"]
            assert pids == (333 if kept else 445)
        assert len(house.containers()) == 3
