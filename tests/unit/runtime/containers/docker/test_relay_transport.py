"""Whether links are bridged, and what a container is then made of."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.runtime.containers.docker import relay_transport
from oubliette.runtime.containers.docker.client import Engine, Facts
from oubliette.runtime.containers.docker.runtime import DockerRuntime
from oubliette.runtime.containers.engine_errors import EngineRefused
from tests.unit.runtime.containers.docker.fake_engine import FakeEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

FACTS = Facts(
    version="1", api_version="1.41", system="Debian", runtimes=frozenset(), rootless=False,
    local=True,
)  # fmt: skip
AWAY = msgspec.structs.replace(FACTS, local=False)
HERE = os.uname()


@pytest.mark.parametrize(
    ("host", "facts", "wanted", "bridged"),
    [
        ("unix:///x", FACTS, "auto", False),
        ("unix:///x", AWAY, "auto", True),
        ("tcp://127.0.0.1:1", FACTS, "auto", True),
        ("unix:///x", FACTS, "bridge", True),
        ("tcp://10.0.0.1:1", AWAY, "bridge", True),
        ("unix:///x", AWAY, "mount", False),
    ],
)
def test_links_are_bridged_where_sockets_do_not_cross(
    host: str, facts: Facts, wanted: Any, bridged: bool
) -> None:
    assert relay_transport.choose(Engine("docker", host), facts, wanted) is bridged


def test_an_engine_on_another_machine_is_refused_with_what_to_do() -> None:
    refusal = relay_transport.choose(Engine("docker", "tcp://10.0.0.1:1"), AWAY, "auto")
    assert isinstance(refusal, tuple)
    assert "another machine" in refusal[0]
    assert "docker.sockets = bridge" in refusal[1]


def test_a_bridges_group_is_never_that_of_the_agents() -> None:
    assert relay_transport.bridge_user("23456:23456") == "23456:65534"
    assert relay_transport.bridge_user("65534:65534") == "65534:65533"


def test_folders_that_are_not_shared_are_named_as_the_cause() -> None:
    engine = Engine("docker", "tcp://10.0.0.1:1")
    said = 'invalid mount config for type "bind": bind source path does not exist: /home/x'
    error = relay_transport.explained(engine, EngineRefused(said, status=400))
    assert "does not see this server's folders" in error.message
    assert "/home/x" in error.message
    other = EngineRefused("something else", status=400)
    assert relay_transport.explained(engine, other) is other


@pytest.mark.parametrize(("flavour", "owner"), [("docker", "uid=7,gid=8"), ("podman", "U")])
def test_nothing_but_plain_files_crosses_where_links_are_bridged(flavour: Any, owner: str) -> None:
    body: dict[str, Any] = {
        "User": "7:8",
        "Cmd": [
            "-I",
            "-S",
            "z",
            "host",
            "--key",
            "/mcp/key",
            "--ready",
            "/mcp/ready",
            "--label",
            "x",
        ],
        "HostConfig": {
            "Mounts": [
                {"Target": target}
                for target in ("/opt/oubliette/oubliette.pyz", "/mcp", "/var/spool/oubliette", "/w")
            ],
            "Tmpfs": {"/tmp": "rw"},
        },
    }
    relay_transport.shape_bridged(body, flavour)
    targets = [mount["Target"] for mount in body["HostConfig"]["Mounts"]]
    assert targets == ["/opt/oubliette/oubliette.pyz", "/w"]
    assert sorted(body["HostConfig"]["Tmpfs"]) == ["/mcp", "/tmp", "/var/spool/oubliette"]
    assert body["HostConfig"]["Tmpfs"]["/mcp"].endswith(f"mode=0700,{owner}")
    assert body["Cmd"] == ["-I", "-S", "z", "host", "--key", "-", "--ready-fd", "1", "--label", "x"]
    assert body["OpenStdin"]


def test_a_command_of_ones_own_is_left_as_it_is() -> None:
    body: dict[str, Any] = {"User": "7:8", "Cmd": ["60"], "HostConfig": {"Mounts": [], "Tmpfs": {}}}
    relay_transport.shape_bridged(body, "docker")
    assert body["Cmd"] == ["60"]


# ---------------------------------------------------------------- what engines say of themselves


@pytest.fixture
async def fake(anyio_backend: str) -> AsyncIterator[FakeEngine]:
    made = FakeEngine()
    try:
        yield made
    finally:
        await made.aclose()


@pytest.mark.parametrize(
    ("info", "crosses"),
    [
        ({"OperatingSystem": "Debian", "KernelVersion": HERE.release}, True),
        ({"OperatingSystem": "Docker Desktop", "KernelVersion": HERE.release}, False),
        ({"OperatingSystem": "Alpine Linux", "KernelVersion": "6.1.0-elsewhere"}, False),
    ],
)
async def test_the_engine_is_asked_where_it_runs(
    fake: FakeEngine, short: Path, info: dict[str, Any], crosses: bool
) -> None:
    fake.info = info
    runtime = DockerRuntime(short, short, host=await fake.listen(short / "engine.sock"))
    try:
        status = await runtime.ping()
        assert status.ok, status
        assert runtime.capabilities.sockets_cross is crosses
    finally:
        await runtime.aclose()
