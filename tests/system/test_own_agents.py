"""Agents that are one Python function, and runtimes that a program passes, in a whole system."""

from __future__ import annotations

import contextlib
import importlib
import json
import linecache
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from oubliette.api import own_agent
from oubliette.api.agent_files import program_packages
from oubliette.config.schema import Config, CredentialConfig
from oubliette.runtime.containers import ProcessRuntime, RuntimeSpec, host_paths
from oubliette.runtime.zipapp import zipapp_path
from oubliette.server import running
from oubliette.testing.model_server import ModelServer
from tests.images import ensure_image
from tests.selection import without_sandbox
from tests.system import own_agents
from tests.system.site import TURN, Site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.sandboxless]

SANDBOXES = [
    pytest.param("bubblewrap", marks=pytest.mark.requires("bubblewrap")),
    pytest.param("best-effort", marks=without_sandbox()),
]
ROOT = Path(__file__).parents[2]


class Embedded:
    """What a site needs to know of a server, of one in this process."""

    def __init__(self, home: Path, sandbox: str) -> None:
        self.home = home
        self.sandboxed = sandbox == "bubblewrap"
        self.url = ""
        self.config = msgspec.convert(
            {
                "server": {"port": 0, "on_stop": "end"},
                "containers": {"runtime": "process", "runtime_dir": str(home / "r")},
                "process": {"sandbox": sandbox},
            },
            Config,
        )
        self.project = None
        self._keys: list[str] = []

    def home_of(self, _project_id: str) -> Path:
        return self.home

    @contextlib.asynccontextmanager
    async def running(self, **more) -> AsyncIterator[Site]:
        """A site on it, for the time of the block; `more` goes to `running`."""
        settings = {"agents": own_agents.AGENTS, "config": self.config, **more}
        async with running(self.home, **settings) as server:
            self.url = server.url
            for scope in ("admin", *["write"] * 12):
                self._keys.append((await server.keys.create(name="test", scope=scope)).key)
            site = Site(self)
            async with site.eyes:
                if self.project is None:
                    await site.open()
                    self.project = site.project
                site.project = self.project
                yield site
                await site.tidy()

    def token(self, scope: str) -> str:
        """A key that is not used yet; the first is the administrator's."""
        return self._keys.pop(0 if scope == "admin" else -1)


@pytest.fixture
def home():
    """Short, because sockets lie below it."""
    folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=SANDBOXES)
async def site(request, home):
    async with Embedded(home, request.param).running() as site:
        yield site


async def test_a_function_answers_in_pieces_that_are_one_message(site):
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "hello", agent="echo")
        done = await agent.event("completion")
        assert (done["status"], done["final_text"]) == ("completed", "You said hello")
        assert (await agent.event("message"))["text"] == "You said hello"
        await agent.say("again")
        assert (await agent.event("completion", nth=2))["final_text"] == "You said again"


async def test_a_function_returns_its_whole_answer_and_knows_its_session(site):
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "who?", agent="whole", model="small")
        done = await agent.event("completion")
        workspace = (await agent.get())["workspace_id"]
        folder = f"{site.workspaces(site.project)}/{workspace}"
        said = f"{agent.session_id} 1 {folder} small {folder}"
        assert done["final_text"] == said


async def ended(agent, why):
    """Wait until a session has failed for this reason."""
    failed = await agent.event("error", timeout=TURN)
    assert why in failed["message"], failed


def add(a: int, b: int) -> int:
    """Add."""
    if b == 0:
        raise ValueError("nothing to add")
    return a + b


async def test_a_function_calls_tools_of_its_caller_and_sees_their_errors(site):
    async with site.caller("http-auto", tools={"add": add}) as caller:
        await caller.listen()
        call = f"myapp_add {json.dumps({'a': 2, 'b': 3})}"
        agent = await site.spawn(caller, call, agent="caller")
        assert await agent.turn() == ["I have True. ", "It is '5'."]
        called = await agent.event("tool_call")
        assert (called["tool"], called["arguments"]) == ("myapp_add", {"a": 2, "b": 3})
        result = await agent.event("tool_result", call_id=called["call_id"])
        assert (result["result"], result["is_error"]) == ("5", False)
        await agent.say(f"myapp_add {json.dumps({'a': 2, 'b': 0})}")
        failed = await agent.event("completion", nth=2)
        assert failed["status"] == "completed"
        assert "nothing to add" in failed["final_text"]
        assert failed["final_text"].startswith("It failed: ")
        second = await agent.event("tool_result", nth=2)
        assert second["is_error"] is True


async def test_a_function_calls_tools_of_oubliette(site):
    async with site.caller("http-auto") as caller:
        call = f"session_message {json.dumps({'message': 'context_list {}'})}"
        agent = await site.spawn(caller, call, agent="caller")
        done = await agent.event("completion")
        assert "It is {'entries': []" in done["final_text"], "the answer of its child"


async def test_tools_of_its_own_and_what_they_cost_are_in_the_log(site):
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "some words", agent="worker")
        done = await agent.event("completion")
        assert done["final_text"] == "0 before: []"
        called = await agent.event("tool_call", tool="write")
        result = await agent.event("tool_result", call_id=called["call_id"])
        assert (called["arguments"], result["result"]) == ({"path": "notes"}, "written")
        assert (await agent.get())["usage"]["cost_usd"] == 0.25
        await agent.say("more")
        again = await agent.event("completion", nth=2)
        assert again["final_text"] == "1 before: ['0 before: []']"


@pytest.mark.parametrize(
    ("decision", "said"),
    [("allow", "Good."), pytest.param("deny", "Then not.", marks=pytest.mark.whole)],
)
async def test_a_function_asks_for_a_permission(site, decision, said):
    async with site.caller("http-auto", decide=lambda _: decision) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "may I?", agent="careful")
        assert await agent.turn() == [said]


async def test_an_interrupt_ends_the_function_which_tidies_up(site):
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "wait", agent="patient")
        await agent.event("delta", text="waiting")
        await caller.call("session_interrupt", session_id=agent.session_id)
        done = await agent.event("completion")
        assert (done["status"], done["final_text"]) == ("interrupted", "waiting")
        workspace = (await agent.get())["workspace_id"]
        folder = site.server.home / "projects" / site.project["id"] / "workspaces" / workspace
        assert (folder / "tidied").read_text() == "True"
        await agent.say("and again")
        await agent.event("delta", nth=2, text="waiting")


async def test_an_exception_fails_the_turn_with_its_message_and_the_session_goes_on(site):
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "break", agent="clumsy")
        error = await agent.event("error")
        assert error["message"] == "LookupError: no such thing"
        assert (await agent.event("completion"))["status"] == "failed"
        await agent.say("go on")
        done = await agent.event("completion", nth=2)
        assert (done["status"], done["final_text"]) == ("completed", "well 1")
        log = site.server.home / "logs" / f"{agent.session_id}.stderr.log"
        assert "raise LookupError" in log.read_text()
        assert "a stray word on stdout" in log.read_text()


async def test_a_process_that_ended_is_resumed_with_the_history_of_the_conversation(site):
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "first", agent="clumsy")
        await agent.event("completion")
        await agent.say("exit")
        await ended(agent, "exit code 3")
        await agent.say("third")
        done = await agent.event("completion", nth=2, status="completed")
        assert done["final_text"] == "well 1"


async def test_auto_selects_the_first_agent_that_the_program_passes(site):
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "hello")
        assert (await agent.event("completion"))["final_text"] == "You said hello"


@pytest.mark.whole
async def test_a_new_server_on_the_same_home_goes_on_with_the_conversation(home):
    site_of = Embedded(home, "best-effort")
    site_of.config = msgspec.structs.replace(
        site_of.config, server=msgspec.structs.replace(site_of.config.server, on_stop="keep")
    )
    async with contextlib.AsyncExitStack() as stack:
        site = await stack.enter_async_context(site_of.running())
        key = site.principal()
        caller = await stack.enter_async_context(site.caller("http-auto", token=key))
        waiting = await site.spawn(caller, "wait", agent="patient")
        await waiting.event("delta", text="waiting")
        working = await site.spawn(caller, "one", agent="worker")
        await working.event("completion")
        site.agents.clear()
    async with site_of.running() as site, site.caller("http-auto", token=key) as caller:
        agent = site.agent(working.session_id, caller)
        await agent.say("two")
        assert (await agent.event("completion", nth=2))["final_text"].startswith("1 before")
        again = site.agent(waiting.session_id, caller)
        await caller.call("session_interrupt", session_id=again.session_id)
        assert (await again.event("completion"))["status"] == "interrupted"
        await caller.call("session_end", session_id=again.session_id)
        await caller.call("session_end", session_id=agent.session_id)
    site_of.config = Embedded(home, "best-effort").config
    async with site_of.running():
        pass  # ends the containers that were kept


async def test_a_server_without_the_agent_of_a_session_fails_it_with_the_reason(home):
    """As when the command line serves a home whose sessions a program has started."""
    embedded = Embedded(home, "best-effort")
    ending = embedded.config
    embedded.config = msgspec.structs.replace(
        ending, server=msgspec.structs.replace(ending.server, on_stop="keep")
    )
    async with contextlib.AsyncExitStack() as stack:
        site = await stack.enter_async_context(embedded.running())
        key = site.principal()
        caller = await stack.enter_async_context(site.caller("http-auto", token=key))
        waiting = await site.spawn(caller, "wait", agent="patient")
        await waiting.event("delta", text="waiting")
        idle = await site.spawn(caller, "one", agent="worker")
        await idle.event("completion")
        site.agents.clear()
    embedded.config = ending
    async with embedded.running(agents=()) as site, site.caller("http-auto", token=key) as caller:
        running = site.agent(waiting.session_id, caller)
        failed = await running.event("status", status="failed")
        assert "this server has no agent 'patient'" in failed["reason"]
        agent = site.agent(idle.session_id, caller)
        failed = await agent.event("status", status="failed")
        assert "this server has no agent 'worker'" in failed["reason"]
        await agent.say("two")
        again = await agent.event("status", status="failed", nth=2)
        assert "this server has no agent 'worker'" in again["reason"]


PROGRAM = """
import asyncio
import sys
from pathlib import Path

import oubliette
from oubliette.api.own_agent import agent

@agent
async def shout(turn):
    yield turn.prompt.upper()

async def main():
    sys.path.insert(0, {root!r})
    from tests.system.test_own_agents import Embedded
    async with Embedded(Path(sys.argv[1]), "best-effort").running(agents=[shout]) as site:
        async with site.caller("http-auto") as caller:
            session = await site.spawn(caller, "from a script", agent="shout")
            print((await session.event("completion"))["final_text"])

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.whole
def test_a_script_has_its_agent_in_its_own_file(home, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(root=str(ROOT)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, home],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "FROM A SCRIPT" in done.stdout.splitlines()


async def test_a_module_that_its_container_cannot_import_fails_the_session_with_a_remedy(
    home, tmp_path, monkeypatch
):
    (tmp_path / "needy.py").write_text(
        "import beside\n"
        "from oubliette.api.own_agent import agent\n"
        "@agent\n"
        "async def needy(turn):\n"
        "    yield 'never'\n",
        encoding="utf-8",
    )
    (tmp_path / "beside.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    needy = importlib.import_module("needy").needy
    embedded = Embedded(home, "best-effort")
    async with embedded.running(agents=[needy]) as site, site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "hello", agent="needy")
        error = await agent.event("error")
        assert "the agent needy cannot be run" in error["message"]
        assert "No module named 'beside'" in error["message"]
        assert "files=" in error["message"]


CELL = """
@agent(name="of-a-cell")
async def of_a_cell(turn):
    yield json.dumps({"said": turn.prompt, "limit": LIMIT})
"""


async def test_a_function_of_a_notebooks_cell_runs_without_a_file(home):
    place = "<ipython-input-1-of-a-test>"
    linecache.cache[place] = (len(CELL), None, CELL.splitlines(keepends=True), place)
    there = {"__name__": "__main__", "agent": own_agent.agent, "json": json, "LIMIT": 3}
    exec(compile(CELL, place, "exec", dont_inherit=True), there)
    embedded = Embedded(home, "best-effort")
    async with (
        embedded.running(agents=[there["of_a_cell"]]) as site,
        site.caller("http-auto") as caller,
    ):
        agent = await site.spawn(caller, "hello", agent="of-a-cell")
        assert await agent.outcome() == {"said": "hello", "limit": 3}


class Pen(ProcessRuntime):
    """A runtime of the program's own; this one works like the sandbox."""

    @property
    def name(self) -> str:
        """As no other."""
        return "pen"


PEN = RuntimeSpec(
    name="pen",
    make=lambda setup: Pen(setup.base, setup.zipapp, home=setup.home),
    images=False,
    limits=False,
    network=lambda _: "none",
)


@pytest.mark.requires("bubblewrap")
@pytest.mark.parametrize("form", ["spec", "object"])
async def test_agents_run_in_a_runtime_that_the_program_passes(home, form):
    base = host_paths.runtime_base(home / "r")
    pen = PEN if form == "spec" else Pen(base, zipapp_path(), home=home)
    embedded = Embedded(home, "bubblewrap")
    embedded.config = msgspec.structs.replace(
        embedded.config,
        containers=msgspec.structs.replace(embedded.config.containers, runtime="auto"),
    )
    async with embedded.running(runtime=pen) as site, site.caller("http-auto") as caller:
        assert (await site.eyes.call("project_options"))["runtimes"] == ["pen"]
        agent = await site.spawn(caller, "hello", agent="echo")
        assert (await agent.event("completion"))["final_text"] == "You said hello"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The example, built and installed without a network."""
    target = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "own_agent"
    shutil.copytree(ROOT / "examples" / "own_agent", source)  # a build writes beside its source
    words = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", target)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *words, source],
        check=True,
        timeout=100,
    )
    return target


@pytest.mark.whole
async def test_the_example_is_an_agent_that_a_package_adds(home, package, monkeypatch):
    monkeypatch.syspath_prepend(str(package))
    embedded = Embedded(home, "best-effort")
    tools = {"add": add}
    try:
        async with (
            embedded.running(agents=()) as site,
            site.caller("http-auto", tools=tools) as caller,
        ):
            await caller.listen()
            agent = await site.spawn(caller, "hello", agent="word-counter")
            assert await agent.turn() == ["This is message 1 of our conversation."]
            workspace = (await agent.get())["workspace_id"]
            folder = home / "projects" / site.project["id"] / "workspaces" / workspace
            (folder / "poem").write_text("three words here", encoding="utf-8")
            await agent.say("count poem")
            assert await agent.turn() == ["poem: 3 words\n"]
            called = await agent.event("tool_call")
            assert (called["tool"], called["arguments"]) == ("count_words", {"path": "poem"})
            await agent.say(f"call myapp_add {json.dumps({'a': 1, 'b': 1})}")
            assert await agent.turn() == ["2"]
            await agent.say("call missing")
            assert "missing failed: " in (await agent.turn())[-1]
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "own_agent"]:
            del sys.modules[name]


def documented(name):
    """The block of the page that defines the agent `name`."""
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (found,) = [block for block in blocks if f"async def {name}(" in block]
    return found


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.whole
async def test_the_documented_loop_on_a_model_library_calls_the_callers_tools(
    home, tmp_path, monkeypatch, sandbox
):
    if (
        sandbox == "best-effort"
        and os.getuid() == 0
        and host_paths.closed_folders(program_packages()[0], os.getuid() + 1)
    ):
        pytest.skip("the agents of root are another user, who may not read this environment")
    (tmp_path / "loop_agent.py").write_text(documented("loop"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    async with ModelServer() as model:
        monkeypatch.setenv("MODEL_KEY", "a-key")
        monkeypatch.setenv("MODEL_URL", model.url.removesuffix("/v1"))
        given = {
            "key": {"value": "env:MODEL_KEY", "projects": ["*"], "variable": "ANTHROPIC_API_KEY"},
            "url": {"value": "env:MODEL_URL", "projects": ["*"], "variable": "ANTHROPIC_BASE_URL"},
        }
        embedded = Embedded(home, sandbox)
        embedded.config = msgspec.structs.replace(
            embedded.config,
            process=msgspec.structs.replace(embedded.config.process, network="host"),
            credentials=msgspec.convert(given, dict[str, CredentialConfig]),
        )
        loop = importlib.import_module("loop_agent").loop
        async with (
            embedded.running(agents=[loop]) as site,
            site.caller("http-auto", tools={"add": add}) as caller,
        ):
            await caller.listen()
            script = f"say Let me see.\ncall myapp_add {json.dumps({'a': 20, 'b': 22})}\nusage 12 3"
            agent = await site.spawn(caller, script, agent="loop", model="small")
            said = await agent.turn()
            assert said, json.dumps(agent.log)[-900:]
            assert said[0] == "Let me see."
            assert "42" in said[-1]
            assert (await agent.event("tool_result"))["result"] == "42"
            assert (await agent.get())["usage"]["output_tokens"] == 2 * 3
        assert {request.path for request in model.requests} == {"/v1/messages"}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("docker", marks=pytest.mark.requires("docker")),
        pytest.param("podman", marks=pytest.mark.requires("podman")),
    ],
)
async def test_a_function_runs_in_containers_of_an_engine(home, engine):
    embedded = Embedded(home, "bubblewrap")
    containers = msgspec.structs.replace(
        embedded.config.containers, runtime=engine, image=ensure_image(engine), network="none"
    )
    embedded.config = msgspec.structs.replace(embedded.config, containers=containers)
    async with (
        embedded.running() as site,
        site.caller("http-auto", tools={"add": add}) as caller,
    ):
        await caller.listen()
        call = f"myapp_add {json.dumps({'a': 2, 'b': 3})}"
        agent = await site.spawn(caller, call, agent="caller")
        assert await agent.turn(timeout=60) == ["I have True. ", "It is '5'."]
        agent = await site.spawn(caller, "some words", agent="worker")
        await agent.turn(timeout=60)
        await agent.say("more")
        assert await agent.turn(timeout=60) == ["1 before: ['0 before: []']"]
