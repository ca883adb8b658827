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
