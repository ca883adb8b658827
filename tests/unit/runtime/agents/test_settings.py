"""Agents' configuration: programs, references to secrets, installed packages."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from oubliette.config.schema import AcpConfig, Config, DroidConfig, OpencodeConfig
from oubliette.errors import ConfigError
from oubliette.runtime.agents import AgentSession, DroidRuntime, OpencodeAcpRuntime
from oubliette.runtime.agents.environment import environment, resolve
from oubliette.runtime.agents.program import Program, ProgramOutOfReach
from oubliette.runtime.agents.registry import installed
from oubliette.runtime.containers import Inside

pytestmark = pytest.mark.anyio

SESSION = AgentSession(
    session_id="gogol_1",
    project_id="proj_1",
    depth=0,
    cwd="/workspace",
    home="/home/agent/gogol_1",
    pairing_secret="pairing",
)


def test_a_secret_is_found_by_its_reference(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from the file\n")
    assert resolve("env:KEY", {"KEY": "from the environment"}) == "from the environment"
    assert resolve(f"file:{tmp_path / 'key'}") == "from the file"


@pytest.mark.parametrize("reference", ["sk-a-real-key", "env:NOT_THERE", "file:/nonexistent"])
def test_a_reference_that_leads_nowhere_is_told_without_the_secret(reference: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(reference, {})
    assert "sk-a-real-key" not in str(refused.value)


def test_variables_of_agents_are_references_or_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s")
    assert environment(("A=env:SECRET", "B=plain=1"), "acp") == {"A": "s", "B": "plain=1"}
    for wrong in ("A", "=x", "A=env:NOT_THERE"):
        with pytest.raises(ConfigError, match=r"acp\.env"):
            environment((wrong,), "acp")


def test_a_program_is_the_configured_one_or_the_one_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program = Program("agent", package="agent-pkg", section="agent")
    assert not program.availability.ok
    remedy = program.availability.remedy or ""
    assert "npm install -g agent-pkg" in remedy
    assert "path in [agent]" in remedy
    (tmp_path / "agent").write_text("#!/bin/sh\n")
    (tmp_path / "agent").chmod(0o755)
    assert program.availability.ok
    (mount,) = program.mounts
    assert (mount.source, mount.read_only) == (tmp_path / "agent", True)
    assert program.inside(Inside()) == mount.target
    assert program.inside(Inside(places={"/workspace": "/x"})) == str(tmp_path / "agent")
    with pytest.raises(ConfigError, match=r"agent\.path"):
        program.configure(str(tmp_path / "other"))


@pytest.fixture
def passable() -> Iterator[Path]:
    """A folder that every user may go to."""
    with tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as path:
        Path(path).chmod(0o711)
        yield Path(path)


@pytest.mark.parametrize("closed", ["folder", "file"])
def test_a_program_that_the_agents_user_cannot_reach_is_told_with_the_remedy(
    passable: Path, closed: str
) -> None:
    place = passable / "bin"
    place.mkdir(0o700 if closed == "folder" else 0o755)
    file = place / "agent"
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755 if closed == "folder" else 0o750)
    program = Program("agent", package="agent-pkg", section="agent")
    program.configure(str(file))
    inside = Inside(places={"/workspace": "/x"}, stranger=65534)
    with pytest.raises(ProgramOutOfReach) as caught:
        program.inside(inside)
    why = f"who may not pass {place}" if closed == "folder" else "who may not run it"
    assert caught.value.message.startswith(f"the agent's program {file} cannot be started: ")
    assert caught.value.message.endswith(why)
    assert "npm install -g agent-pkg" in (caught.value.hint or "")
    place.chmod(0o755)
    file.chmod(0o755)
    assert program.inside(inside) == str(file)


@pytest.mark.parametrize("runtime", [OpencodeAcpRuntime, DroidRuntime])
def test_the_models_key_is_in_the_environment_and_in_no_file(
    runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "model-key")
    made = runtime({"model": "m", "base_url": "http://127.0.0.1:1/v1", "api_key": "env:KEY"})
    command = made.command(SESSION, Inside())
    assert any("model-key" in value for value in command.env.values())
    assert not any("model-key" in word for word in command.argv)
    assert not any(b"model-key" in file.content for file in command.files)


async def test_auto_means_an_agent_that_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    plain = await installed(Config())
    assert list(plain.agents) == ["scripted"]
    assert set(plain.missing) == {"opencode", "opencode-acp", "droid", "acp"}
    config = Config(acp=AcpConfig(command=("agent", "--acp")))
    assert list((await installed(config)).agents) == ["acp", "scripted"]
    for wrong in (
        Config(opencode=OpencodeConfig(base_url="http://127.0.0.1:1")),
        Config(droid=DroidConfig(api_key="in clear")),
        Config(acp=AcpConfig(path="/bin/sh")),
    ):
        with pytest.raises(ConfigError):
            await installed(wrong)
