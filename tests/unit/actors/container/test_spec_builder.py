"""Specs of containers: the network that a sandbox gets, and the ports of this machine in it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from oubliette.actors.container.messages import ContainerKey
from oubliette.actors.container.spec_builder import ContainerSpecBuilder
from oubliette.config.schema import Config, ProcessConfig
from oubliette.runtime.agents.loopback_ports import LoopbackPorts

if TYPE_CHECKING:
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("network", "url", "given", "ports"),
    [
        ("auto", "http://localhost:7000/mcp", "auto", (7000, 11434)),
        ("own", "http://localhost:7000/mcp", "own", (7000, 11434)),
        ("auto", "http://127.0.1.1:7000/mcp", "auto", (11434,)),
        ("host", "http://localhost:7000/mcp", "host", ()),
    ],
)
async def test_a_sandbox_reaches_the_ports_that_its_agents_need(
    world: World, network: str, url: str, given: str, ports: tuple[int, ...]
) -> None:
    project = await world.project(mcp_servers={"tracker": {"url": url}})
    context = dataclasses.replace(
        world.context,
        config=Config(process=ProcessConfig(network=network)),
        loopback_ports=LoopbackPorts((11434,)),
    )
    builder = ContainerSpecBuilder(context, project, ContainerKey("base"))
    spec = builder.spec("ctr_1")
    assert (spec.network, spec.loopback_ports) == (given, ports)
    other = dataclasses.replace(context, loopback_ports=LoopbackPorts((11435,)))
    renewed = ContainerSpecBuilder(other, project, ContainerKey("base")).digest()
    assert (renewed == builder.digest()) == (network == "host")


@pytest.mark.parametrize(("network", "given"), [("auto", "host"), ("own", "own")])
async def test_only_the_configuration_of_the_server_opens_the_network_of_the_host(
    world: World, network: str, given: str
) -> None:
    context = dataclasses.replace(
        world.context,
        config=Config(process=ProcessConfig(network=network)),
        loopback_ports=LoopbackPorts((11434,), ("127.0.1.1:9000",)),
    )
    builder = ContainerSpecBuilder(context, await world.project(), ContainerKey("base"))
    assert builder.spec("ctr_1").network == given
