"""What runs in a container runs on the oldest Python that an image may bring."""

from __future__ import annotations

import sys

import pytest

from oubliette.incontainer import build
from tests.requirements import python39
from tests.unit.incontainer.fake_server import ADD, FakeServer, LineProcess, environment

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory):
    return build.build(tmp_path_factory.mktemp("zipapp") / "oubliette.pyz")


@pytest.mark.parametrize(
    "interpreter",
    [
        pytest.param(lambda: sys.executable, id="this"),
        pytest.param(python39, id="3.9", marks=pytest.mark.requires("python3.9")),
    ],
)
async def test_client_and_scripted_agent_run_from_the_zipapp(zipapp, interpreter, tmp_path):
    python = interpreter()
    async with FakeServer(ADD) as server:
        env = environment(server.path, PYTHONPATH=None, OUBLIETTE_AGENT_HOME=str(tmp_path))
        async with LineProcess([python, str(zipapp), "scripted-agent"], env, cwd=tmp_path) as agent:
            assert (await agent.receive())["type"] == "ready"
            text = "tools\ncall ant_add\nexec echo hi\nremember k v\nrecall k"
            agent.send({"type": "prompt", "turn": 1, "text": text})
            link = await server.link()
            link.answer(await link.request(), {"n": 1})
            events = []
            while not events or events[-1]["type"] != "completion":
                events.append(await agent.receive())
            said = [event["text"] for event in events if event["type"] == "message"]
            assert said[0] == '["session_message", "session_map", "session_events", "ant_add"]'
            assert '"structured": {"n": 1}' in said[1]
            assert said[2] == '{"exit_code": 0, "stdout": "hi\\n", "stderr": ""}'
            assert said[-1] == "v"
            assert await agent.end() == (0, "")
