"""Agents that the program of a server passes, beside those that are installed."""

from __future__ import annotations

import os

import msgspec
import pytest

from oubliette.api.own_agent import agent
from oubliette.config.schema import Config
from oubliette.errors import ConfigError
from oubliette.runtime.agents import AcpRuntime, AgentSession
from oubliette.runtime.agents.base import Availability
from oubliette.runtime.agents.program import ProgramOutOfReach
from oubliette.runtime.agents.registry import installed
from oubliette.runtime.containers.base import Inside

pytestmark = pytest.mark.anyio


@agent
async def echo(turn):
    yield turn.prompt


@agent(name="scripted")
async def impostor(turn):
    yield turn.prompt


class Away(AcpRuntime):
    """An agent of the program that is not usable here."""

    def __init__(self):
        super().__init__("away", ("away",), section="package_agents.away")

    async def is_available(self):
        return Availability(ok=False, reason="it is away", remedy="call it")


def config(**tables):
    return msgspec.convert(tables, Config)


async def test_auto_selects_the_first_one_that_is_passed():
    first = AcpRuntime("mine", ("/bin/mine",), section="package_agents.mine")
    found = await installed(config(acp={"command": ["other"]}), [first, echo])
    assert list(found.agents)[:2] == ["mine", "echo"]
    assert found.agents["mine"] is first
    assert "scripted" in found.agents


async def test_one_that_is_not_available_is_missing_with_its_remedy():
    found = await installed(config(), [Away(), echo])
    assert next(iter(found.agents)) == "echo"
    assert found.missing["away"].remedy == "call it"


@pytest.mark.parametrize(
    ("passed", "why", "remedy"),
    [
        ([impostor], "agents.0.: .*scripted.*: there is an agent called scripted already", "name"),
        ([echo, echo], "agents.1.: .*: there is an agent called echo already", "another name"),
        ([echo.function], "agents.0.: .*: it has no adapter, ", "oubliette.agent"),
        ([object()], "it has no adapter", "AgentRuntime"),
    ],
)
async def test_what_is_no_agent_or_has_a_name_that_is_taken_is_refused(passed, why, remedy):
    with pytest.raises(ConfigError, match=why) as refused:
        await installed(config(), passed)
    assert remedy in (refused.value.hint or "")


async def test_a_function_takes_no_settings_and_another_agent_takes_its_table():
    with pytest.raises(ConfigError, match=r"package_agents\.echo\.tone: .*no settings"):
        await installed(config(package_agents={"echo": {"tone": "soft"}}), [echo])
    mine = AcpRuntime("mine", ("/bin/mine",), section="package_agents.mine")
    found = await installed(config(package_agents={"mine": {"model": "small"}}), [mine])
    assert "mine" in found.agents
    with pytest.raises(ConfigError, match="no installed package has an agent 'nobody'"):
        await installed(config(package_agents={"nobody": {}}), [mine])


async def test_no_secret_is_in_the_command_of_a_function():
    runtime = (await installed(config(), [echo])).agents["echo"]
    session = AgentSession(
        session_id="s", project_id="p", depth=0, cwd="/workspace/workspaces/w",
        home="/home/agent/s", pairing_secret="very secret", api_key="secret too",
    )  # fmt: skip
    command = runtime.command(session, Inside(places={"/home/agent": "/srv/homes"}))
    assert "secret" not in " ".join(command.argv)
    assert "/srv/homes/s/.oubliette-agent/agent.zip" in command.argv[-1]
    assert [file.path for file in command.files] == [".oubliette-agent/agent.zip"]
    assert command.files[0].mode == 0o600


@agent(packages="program")
async def equipped(turn):
    yield turn.prompt


async def test_packages_of_the_program_are_mounted_and_used_where_they_are_without_mounts():
    runtime = (await installed(config(), [equipped])).agents["equipped"]
    (mount,) = runtime.mounts
    assert mount.read_only
    assert (mount.source / "pytest").is_dir()
    session = AgentSession(
        session_id="s", project_id="p", depth=0, cwd="/workspace", home="/home/agent/s",
        pairing_secret="secret",
    )  # fmt: skip

    def packages(inside):
        return msgspec.json.decode(runtime.command(session, inside).argv[-1])["packages"]

    assert packages(Inside()) == [mount.target]
    assert packages(Inside(places={"/workspace": "/srv"})) == [str(mount.source)]


async def test_packages_that_another_user_may_not_read_are_named_with_the_remedy(tmp_path):
    runtime = (await installed(config(), [equipped])).agents["equipped"]
    closed = tmp_path / "closed"
    (closed / "site-packages").mkdir(parents=True)
    runtime._shipped = msgspec.structs.replace(
        runtime._shipped, packages=(closed / "site-packages",)
    )
    closed.chmod(0o700)
    session = AgentSession(
        session_id="s", project_id="p", depth=0, cwd="/workspace", home="/home/agent/s",
        pairing_secret="secret",
    )  # fmt: skip
    inside = Inside(places={"/workspace": "/srv"}, stranger=os.getuid() + 1)
    with pytest.raises(ProgramOutOfReach, match=r"may not pass /") as refused:
        runtime.command(session, inside)
    assert "virtual environment" in (refused.value.hint or "")
