"""What a repository may not do to an agent that works in it: run code, unasked, and see secrets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.runtime.containers.process import procfs
from oubliette.testing.model_server import ModelServer
from tests import requirements
from tests.system.hostile_repository import found, plant
from tests.system.real_agents import KEY, SLOW, site_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.system.site import Agent as Session
    from tests.system.site import Site

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

AGENTS = [
    pytest.param("opencode", marks=pytest.mark.requires("opencode")),
    pytest.param("opencode-acp", marks=pytest.mark.requires("opencode")),
    pytest.param("droid", marks=pytest.mark.requires("droid")),
]
OPENCODE = AGENTS[:2]
TOOLS = {
    "opencode": [
        'call bash {"command": "true", "description": "x"}',
        'call read {"filePath": "text.txt"}',
        'call write {"filePath": "new.txt", "content": "x"}',
        'call edit {"filePath": "text.txt", "oldString": "text", "newString": "changed"}',
    ],
    "droid": ['call Execute {"command": "true", "riskLevel": "low", "summary": "x"}'],
}
"""Prompts that have an agent use its own tools: some ways in are opened by these."""


@pytest.fixture(scope="module")
def reachable() -> Iterator[dict[str, str]]:
    """Programs where agents of root may go that are another user there."""
    with tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        paths: dict[str, str] = {}
        for name in ("opencode", "droid"):
            if requirements.missing(name) is None:
                target = Path(folder) / name
                try:
                    os.link(requirements.program(name), target)
                except OSError:
                    shutil.copy2(requirements.program(name), target)
                paths[f"{name}.path"] = str(target)
        yield paths


BUBBLEWRAP = pytest.param("bubblewrap", marks=pytest.mark.requires("bubblewrap"))
DOCKER = pytest.param("docker", marks=pytest.mark.requires("docker"))
WHERE_OURS = pytest.mark.parametrize("place", [BUBBLEWRAP], indirect=True)
"""For what is the adapter's alone: a start of a real program takes seconds of a processor."""


@pytest.fixture(scope="module", params=[BUBBLEWRAP, "best-effort", DOCKER])
async def place(
    request: pytest.FixtureRequest, zygote: Any, model: ModelServer, reachable: dict[str, str]
) -> AsyncIterator[Site]:
    """A server whose agents run in a sandbox, without one, or in containers of an engine."""
    more: dict[str, str] = {}
    if request.param != "docker":
        more = {"process.sandbox": request.param, **reachable}
    engine = "docker" if request.param == "docker" else "process"
    async with site_on(engine, zygote, model, **more) as site:
        yield site


async def workspace_of(site: Site, name: str) -> tuple[str, Path]:
    """A project of its own, and the folder of its workspace."""
    project = await site.eyes.call("project_create", name=name, init_git=False)
    folder = site.server.home / "projects" / project["id"] / "workspaces"
    return project["id"], folder / project["default_workspace_id"]


def process_of(session: Session) -> procfs.HostProcess:
    """The agent's own program."""
    (found,) = [
        process
        for pid in procfs.pids()
        if (line := procfs.command_line(pid))
        and line[0].rpartition("/")[2] in {"opencode", "opencode.exe", "droid"}
        and procfs.environment(pid).get("OUBLIETTE_SESSION_ID") == session.session_id
        and (process := procfs.identify(pid)) is not None
    ]
    return found


@pytest.mark.parametrize("agent", AGENTS)
async def test_nothing_of_a_hostile_repository_is_executed(place: Site, agent: str) -> None:
    """Not at the start, in a turn, by the agent's tools, or when it is resumed."""
    project, workspace = await workspace_of(place, f"hostile-{agent}")
    plant(workspace)
    async with place.caller("http-auto") as caller:
        session = await place.spawn(caller, "say first", agent=agent, project_id=project)
        assert await session.turn(SLOW) == ["first"]
        await session.say("\n".join([*TOOLS[agent.partition("-")[0]], "say second"]))
        assert (await session.turn(2 * SLOW))[-1] == "second"  # six requests to a model
        assert found(workspace) == {}
        if agent != "droid":
            home = "$HOME/.config/opencode"
            left = f"mkdir -p {home} && cp -r one.js opencode.json .opencode/plugin {home}; true"
            await session.say(
                f"call bash {json.dumps({'command': left, 'description': 'x'})}\nsay ok"
            )
            assert (await session.turn(SLOW))[-1] == "ok"
        procfs.send_signal(process_of(session), signal.SIGKILL)
        await session.event("error", timeout=SLOW)
        await session.say("say resumed")
        assert (await session.turn(SLOW))[-1] == "resumed"
        assert found(workspace) == {}


def told(model: ModelServer, prompt: str) -> str:
    """What the model was told besides the conversation, when it was asked this."""
    return "\n".join(
        received.instructions
        for received in model.requests
        if any(said.text.strip() == prompt for said in received.asked.said)
    )


@WHERE_OURS
@pytest.mark.parametrize("agent", AGENTS)
async def test_rules_of_a_repository_reach_the_model(
    place: Site, model: ModelServer, agent: str
) -> None:
    """OpenCode reads those, too, that a link within the repository leads to."""
    project, workspace = await workspace_of(place, f"rules-{agent}")
    if agent == "droid":
        (workspace / "AGENTS.md").write_text("RULE one\n")
    else:
        (workspace / "docs").mkdir()
        (workspace / "docs" / "rules.md").write_text("RULE one\n")
        (workspace / "AGENTS.md").symlink_to("docs/rules.md")
    async with place.caller("http-auto") as caller:
        prompt = f"say first {workspace.name}"
        session = await place.spawn(caller, prompt, agent=agent, project_id=project)
        await session.turn(SLOW)
        assert "RULE one" in told(model, prompt)


@WHERE_OURS
@pytest.mark.parametrize("agent", OPENCODE)
async def test_rules_that_lead_out_of_the_repository_are_told_to_no_model(
    place: Site, model: ModelServer, agent: str
) -> None:
    """A link to an environment would send its secrets to whoever runs the model."""
    project, workspace = await workspace_of(place, f"link-{agent}")
    (workspace / "AGENTS.md").symlink_to("/proc/self/environ")
    (workspace / "CLAUDE.md").write_text("RULE of Claude\n")
    async with place.caller("http-auto") as caller:
        prompt = f"say first {workspace.name}"
        session = await place.spawn(caller, prompt, agent=agent, project_id=project)
        await session.turn(SLOW)
        said = told(model, prompt)
        assert "OUBLIETTE_SESSION_ID=" not in said
        assert "RULE of Claude" in said
        if agent == "opencode":
            noted = await session.event("system", kind="rules")
            assert "AGENTS.md is not read" in noted["reason"]


@pytest.mark.parametrize("place", ["best-effort", DOCKER], indirect=True)
@pytest.mark.parametrize("agent", OPENCODE)
async def test_secrets_are_not_in_the_environment_of_opencode_or_of_its_commands(
    place: Site, model: ModelServer, agent: str
) -> None:
    project, _ = await workspace_of(place, f"secrets-{agent}")
    async with place.caller("http-auto") as caller:
        call = json.dumps({"command": "env", "description": "x"})
        more = {"agent": agent, "project_id": project, "api_key_scope": "write"}
        session = await place.spawn(caller, f"call bash {call}\nsay done", **more)
        assert (await session.turn(SLOW))[-1] == "done"
        seen = {
            "process": repr(procfs.environment(process_of(session).pid)),
            "command": json.dumps((await session.event("tool_result"))["result"]),
        }
        for where, told_ in seen.items():
            assert "OUBLIETTE_SESSION_ID" in told_, where
            for secret in ("PASSWORD", "PAIRING_SECRET", "OUBLIETTE_API_KEY", KEY):
                assert secret not in told_, where
        assert model.requests[-1].key == KEY
