"""Who is given which secret, and what a session is told when one is missing."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING

import pytest

from oubliette.config.agent_config import AgentConfig, McpServer
from oubliette.config.schema import CredentialConfig
from oubliette.errors import ConfigError
from oubliette.runtime.agents import AgentSession, DroidRuntime, OpencodeAcpRuntime
from oubliette.runtime.agents.credentials import Given, filled, given
from oubliette.runtime.agents.environment import check_variables, resolve
from oubliette.runtime.containers import Inside

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_A", "value-a")
    monkeypatch.setenv("SECRET_B", "value-b")


def of(credential: CredentialConfig, **who: str | None) -> Given:
    told = {"project": "proj_1", "name": "shop", "user": None, "agent": "droid", **who}
    return given(
        {"a": credential},
        project=(str(told["project"]), str(told["name"])),
        user=told["user"],
        agent=str(told["agent"]),
    )


def test_a_project_gets_only_what_it_was_given() -> None:
    """ "a project gets only what it was given"."""
    assert of(CredentialConfig(value="env:SECRET_A")) == Given()
    for projects in (("proj_1",), ("shop",), ("*",), ("other", "shop")):
        assert of(CredentialConfig(value="env:SECRET_A", projects=projects)).values == {
            "a": "value-a"
        }
    assert of(CredentialConfig(value="env:SECRET_A", projects=("other",))) == Given()


def test_users_and_agents_narrow_it() -> None:
    """ "User tokens merged here": the workspace of one user, and no other's."""
    credential = CredentialConfig(value="env:SECRET_A", projects=("*",), users=("ada",))
    assert of(credential, user="ada").values == {"a": "value-a"}
    assert of(credential, user="bob") == of(credential, user=None) == Given()
    credential = CredentialConfig(value="env:SECRET_A", projects=("*",), agents=("opencode",))
    assert of(credential, agent="opencode").values
    assert of(credential, agent="droid") == Given()


def test_it_is_in_a_variable_or_in_a_file_or_for_who_names_it() -> None:
    everyone = {"value": "env:SECRET_A", "projects": ("*",)}
    assert of(CredentialConfig(**everyone)).env == {}
    assert of(CredentialConfig(**everyone, variable="A")).env == {"A": "value-a"}
    made = of(CredentialConfig(**everyone, variable="A", as_file=True))
    assert made.env == {}
    (file,) = made.files
    assert (file.variable, base64.b64decode(file.data)) == ("A", b"value-a")


@pytest.mark.parametrize(
    "reference", ["env:NOT_THERE", "file:/nonexistent/key", "file:/dev/zero", "file:/tmp"]
)
def test_what_is_missing_is_named_by_its_reference(reference: str) -> None:
    with pytest.raises(ConfigError) as refused:
        of(CredentialConfig(value=reference, projects=("*",)))
    assert refused.value.message.startswith(f"credentials.a ({reference}): ")
    of(CredentialConfig(value=reference))  # nobody's is not read


def test_a_file_that_would_keep_the_server_waiting_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "huge").write_bytes(b"x" * ((1 << 20) + 1))
    (tmp_path / "empty").write_bytes(b"\n")
    for name in ("fifo", "huge", "empty"):
        with pytest.raises(ConfigError, match=name):
            resolve(f"file:{tmp_path / name}")


def test_a_secret_is_read_anew_at_each_start(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("old")
    credential = CredentialConfig(value=f"file:{tmp_path / 'key'}", projects=("*",))
    assert of(credential).values == {"a": "old"}
    (tmp_path / "key").write_text("new")
    assert of(credential).values == {"a": "new"}


def test_a_server_that_names_what_is_not_given_is_refused() -> None:
    config = AgentConfig(
        mcp_servers={"t": McpServer(command="tool", env={"T": "x-${credential:a}"})}
    )
    assert filled(config, {"a": "1"}) == {"t": {"command": "tool", "env": {"T": "x-1"}}}
    with pytest.raises(ConfigError, match="the credential a, which is not given to this project"):
        filled(config, {})


SESSION = AgentSession(
    session_id="gogol_1",
    project_id="proj_1",
    depth=0,
    cwd="/workspace",
    home="/home/agent/gogol_1",
    pairing_secret="the-pairing-secret",
    api_key="the-minted-key",
    credentials={"model": "the-model-key"},
    mcp_servers={
        "t": {"command": "tool", "args": ["-v"], "env": {"T": "the-token"}},
        "w": {"url": "https://h/mcp", "headers": {"Authorization": "Bearer the-header"}},
    },
)
ALL = ("the-pairing-secret", "the-minted-key", "the-model-key", "the-token", "the-header")


@pytest.mark.parametrize("runtime", [DroidRuntime, OpencodeAcpRuntime])
def test_secrets_are_in_no_argument_and_no_file_of_an_agent(runtime) -> None:
    made = runtime(
        {"model": "m", "base_url": "http://127.0.0.1:1/v1", "api_key": "credential:model"}
    )
    command = made.command(SESSION, Inside())
    told = " ".join(command.argv) + "".join(file.content.decode() for file in command.files)
    assert [secret for secret in ALL if secret in told] == []
    env = "\n".join(command.env.values())
    assert "the-model-key" in env
    assert "the-pairing-secret" in env


def test_droid_is_told_nothing_that_it_would_say_back() -> None:
    """It repeats the servers of a session on its output, which is kept (measured)."""
    adapter = DroidRuntime({"model": "m"}).adapter(SESSION, Inside())
    said = b"".join(adapter.writes()).decode()
    assert [secret for secret in ALL if secret in said] == []
    assert '"oubliette"' in said
    assert '"t"' in said
    assert "https://h/mcp" in said


def test_a_key_that_was_not_given_keeps_the_agent_from_starting() -> None:
    made = DroidRuntime({"model": "m", "base_url": "http://h/v1", "api_key": "credential:other"})
    with pytest.raises(
        ConfigError, match=r"droid\.api_key: the credential other is not given to this project"
    ):
        made.command(SESSION, Inside())


def test_a_variable_that_looks_like_a_secret_is_refused_in_clear() -> None:
    for entry in ("FACTORY_API_KEY=fk-hunter2", "TOKEN=hunter2", "DB_PASSWORD=hunter2"):
        with pytest.raises(ConfigError) as refused:
            check_variables((entry,), "droid")
        assert "hunter2" not in str(refused.value)
    check_variables(("TOKEN=env:X", "LANG=C", "KEYBOARD=de", "A_KEY=credential:x"), "droid")
