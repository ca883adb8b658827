"""Agents that packages of others bring, by an entry point of the group `oubliette.agents`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from oubliette.config.schema import AgentsConfig, Config
from oubliette.errors import ConfigError
from oubliette.runtime.agents.registry import installed, survey
from tests.conformance import parrot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a package of somebody else with these entry points."""

    def installs(**points: str) -> None:
        monkeypatch.syspath_prepend(str(parrot.install(tmp_path, points)))

    yield installs
    sys.modules.pop("oubliette_parrot", None)


async def test_packages_add_agents_by_entry_point(package: Callable[..., None]) -> None:
    package(parrot="oubliette_parrot:Parrot", deaf="oubliette_parrot:deaf")
    found = await installed(Config())
    assert {"parrot", "deaf", "scripted"} <= set(found.agents)
    assert not {"parrot", "deaf"} & set(found.missing)
    assert next(iter(found.agents)) != "parrot"  # which `auto` would mean


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("nowhere:X", "ModuleNotFoundError: No module named 'nowhere'"),
        ("oubliette_parrot:Nothing", "has no attribute 'Nothing'"),
        ("oubliette_parrot:explodes", "RuntimeError: the parrot is no more"),
        ("oubliette_parrot:Unfinished", "it has no adapter, close, command,"),
        ("oubliette_parrot:Parrot.name", "not callable"),
    ],
)
async def test_a_package_that_is_no_good_is_missing_and_says_why(
    package: Callable[..., None], target: str, reason: str
) -> None:
    package(x=target, parrot="oubliette_parrot:Parrot")
    found = await installed(Config())
    assert {"scripted", "parrot"} <= set(found.agents)
    missing = found.missing["x"]
    assert missing.reason.startswith("the package oubliette-parrot 1.2.3 is no good")
    assert reason in missing.reason
    assert "uninstall" in missing.remedy


async def test_a_package_cannot_take_the_place_of_another_agent(
    package: Callable[..., None],
) -> None:
    package(scripted="oubliette.runtime.agents:ScriptedRuntime", droid="oubliette_parrot:Parrot")
    found = await installed(Config())
    assert {"scripted", "parrot"} <= set(found.agents)
    assert "scripted" not in found.missing


async def test_an_agent_of_a_package_gets_its_own_table(package: Callable[..., None]) -> None:
    package(parrot="oubliette_parrot:Parrot", deaf="oubliette_parrot:deaf")
    config = Config(package_agents={"parrot": {"model": "grey", "patience": "5"}})
    agents = (await installed(config)).agents
    assert (agents["parrot"].settings.model, agents["parrot"].settings.patience) == ("grey", 5)
    assert agents["deaf"].settings.model is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patience": "much"}, "package_agents.parrot: Expected int, got str - at $.patience"),
        ({"patince": 1}, "package_agents.parrot: Object contains unknown field patince"),
        ({"patience": 10}, "package_agents.parrot.patience: nobody waits that long"),
    ],
)
async def test_settings_that_an_agent_of_a_package_refuses_end_the_start(
    package: Callable[..., None], settings: dict[str, object], message: str
) -> None:
    package(parrot="oubliette_parrot:Parrot")
    with pytest.raises(ConfigError) as refused:
        await installed(Config(package_agents={"parrot": settings}))
    assert refused.value.message == message
    assert "[package_agents.parrot]" in (refused.value.hint or "")


async def test_a_table_of_an_agent_that_no_package_has_is_refused_with_the_remedy(
    package: Callable[..., None],
) -> None:
    package(parrot="oubliette_parrot:Parrot", dead="oubliette_parrot:explodes")
    with pytest.raises(ConfigError, match=r"package_agents\.parot: no installed pack") as refused:
        await installed(Config(package_agents={"parot": {}}))
    assert "did you mean parrot? install its package, or remove" in (refused.value.hint or "")
    with pytest.raises(ConfigError, match=r"package_agents\.droid: no installed package"):
        await installed(Config(package_agents={"droid": {"model": "x"}}))
    # One whose package is broken is missing with the reason, as without a table.
    assert "dead" in (await installed(Config(package_agents={"dead": {}}))).missing


async def test_a_default_agent_that_is_not_there_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="the agent opencode cannot be used here") as missing:
        await installed(Config(agents=AgentsConfig(default="opencode")))
    assert "npm install -g" in (missing.value.hint or "")
    with pytest.raises(ConfigError, match="there is no agent 'opncode'") as unknown:
        await installed(Config(agents=AgentsConfig(default="opncode")))
    assert (unknown.value.hint or "").startswith("did you mean opencode? there are: auto, acp, ")
    assert "scripted" in (await installed(Config(agents=AgentsConfig(default="scripted")))).agents
    assert "opencode" in (await survey(Config(agents=AgentsConfig(default="opencode")))).missing
