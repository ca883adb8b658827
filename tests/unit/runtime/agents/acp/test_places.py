"""What an ACP agent is given beside its command, as the configuration says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from oubliette.config.schema import AcpConfig, Config
from oubliette.errors import ConfigError
from oubliette.runtime.agents import AcpRuntime
from oubliette.runtime.agents.acp.places import check_files, files_of, mounts_of, placed
from oubliette.runtime.agents.registry import survey
from oubliette.runtime.containers.base import Inside
from tests.unit.runtime.agents.test_protocols import line, said, session


def test_a_folder_is_mounted_where_it_is_or_elsewhere(tmp_path: Path) -> None:
    same, other = mounts_of([f"{tmp_path}", f"{tmp_path}:/opt/agent"], "acp")
    assert (same.source, same.target, same.read_only) == (tmp_path, str(tmp_path), True)
    assert (other.source, other.target) == (tmp_path, "/opt/agent")


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("agent", "agent is no absolute path"),
        ("/no/such/folder", "there is no /no/such/folder"),
        ("/tmp:opt", "opt is no plain absolute path"),
        ("/tmp:/opt/../etc", "no plain absolute path"),
        ("/tmp:/", "/ is no plain absolute path"),
        ("/tmp:/workspace", "a place of Oubliette's"),
        ("/tmp:/home/agent/x", "a place of Oubliette's"),
        ("/tmp:/home", "a place of Oubliette's"),
        ("/tmp:/opt/oubliette/agents/x", "a place of Oubliette's"),
        ("/proc/self", "a place of Oubliette's"),
    ],
)
def test_a_mount_that_cannot_be_is_named(entry: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as refused:
        mounts_of([entry], "acp_agents.x")
    assert refused.value.message.startswith(f"acp_agents.x.mounts: {entry}: ")


def test_files_are_texts_or_copies(tmp_path: Path) -> None:
    source = tmp_path / "kimi.toml"
    source.write_text("[model]\nname = 'x=y'\n", encoding="utf-8")
    entries = [f".kimi/config.toml=file:{source}", "note=a=b"]
    check_files(entries, "acp")
    assert [
        (file.path, file.content, file.mode) for file in files_of(entries, "acp", session())
    ] == [
        (".kimi/config.toml", b"[model]\nname = 'x=y'\n", 0o600),
        ("note", b"a=b\n", 0o600),
    ]
    source.unlink()
    with pytest.raises(ConfigError, match=r"acp.files: .kimi/config.toml: .* cannot be read"):
        files_of(entries, "acp", session())


@pytest.mark.parametrize(
    "entry",
    ["x", "=x", "/etc/x=y", "../x=y", "a/../b=y", "./a=y", "a//b=y", "k=env:K", "k=credential:k"],
)
def test_a_file_that_cannot_be_is_named(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"acp_agents\.x\.files: "):
        check_files([entry], "acp_agents.x")


def test_a_command_finds_its_folder_where_nothing_can_be_mounted(tmp_path: Path) -> None:
    mounts = mounts_of([f"{tmp_path}:/opt/agent"], "acp")
    words = ["node", "/opt/agent/main.js", "/opt/agents"]
    assert [placed(word, mounts, Inside()) for word in words] == words
    nowhere = Inside(places={"/workspace": "/w"})
    assert [placed(word, mounts, nowhere) for word in words] == [
        "node",
        f"{tmp_path}/main.js",
        "/opt/agents",
    ]


@pytest.mark.anyio
async def test_agents_do_not_take_each_others_names_and_places(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    def agent(folder: str) -> AcpConfig:
        return AcpConfig(command=("x",), mounts=(f"{tmp_path / folder}:/opt/x",))

    with pytest.raises(ConfigError, match="there is an agent called droid already"):
        await survey(Config(acp_agents={"droid": AcpConfig(command=("x",))}))
    with pytest.raises(ConfigError, match="the agents one and two both want /opt/x"):
        await survey(Config(acp_agents={"one": agent("a"), "two": agent("b")}))
    found = await survey(
        Config(acp_agents={"one": agent("a"), "two": agent("a"), "three": AcpConfig()})
    )
    assert list(found.agents)[:2] == ["one", "two"]  # what `auto` means: what is configured
    assert found.missing["three"].reason == "acp_agents.three.command is not set"


@pytest.mark.anyio
@pytest.mark.parametrize("chosen", [None, "plan"])
async def test_a_program_is_known_by_its_folder_and_keeps_what_is_done_about_it(
    chosen: str | None,
) -> None:
    """As npm installs it: nothing of a repository is obeyed, and its mode is set."""
    path = "/opt/agents/claude/node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js"
    runtime = AcpRuntime("claude", section="acp_agents.claude")
    files = ["note=text"]
    await runtime.initialize({"command": ["node", path], "mode": chosen, "files": files})
    command = runtime.command(session(), Inside())
    assert [file.path for file in command.files] == [".claude/CLAUDE.md", "note"]
    adapter = runtime.adapter(session(), Inside())
    answer = {"id": "initialize", "result": {"protocolVersion": 1}}
    adapter.writes()
    adapter.feed(line(answer), 0)
    (opened,) = said(adapter.writes())
    assert opened["params"]["_meta"]["claudeCode"]["options"]["settingSources"] == ["user"]
    modes = {
        "currentModeId": "acceptEdits",
        "availableModes": [
            {"id": each, "name": each} for each in ("acceptEdits", "default", "plan")
        ],
    }
    offset = len(line(answer))
    adapter.feed(line({"id": "session", "result": {"sessionId": "s", "modes": modes}}), offset)
    (mode,) = said(adapter.writes())
    assert mode["params"]["modeId"] == (chosen or "default")
    codex = AcpRuntime(command=("node", "/x/@agentclientprotocol/codex-acp/dist/index.js"))
    assert not codex.hears_tool_changes
