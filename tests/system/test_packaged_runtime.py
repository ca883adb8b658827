"""A container runtime that a package of somebody else brings runs agents as any other does."""

from __future__ import annotations

import json

import pytest

from oubliette.testing.server import ServerProcess
from tests.conformance import cage
from tests.system.conftest import ROOMY
from tests.system.site import Site

pytestmark = [pytest.mark.anyio, pytest.mark.requires("bubblewrap")]


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@pytest.mark.whole
async def test_agents_run_in_a_runtime_of_a_package(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(cage.install(tmp_path)))
    settings = {**ROOMY, "containers.runtime": "kennel", "package_runtimes.cage.bars": 20}
    async with ServerProcess(settings=settings) as server:
        await server.start()
        site = Site(server)
        async with site.eyes:
            await site.open()
            assert (await site.eyes.call("project_options"))["runtimes"] == ["cage"]
            async with site.caller("http-auto", tools={"add": add}) as caller:
                await caller.listen()
                call = f"call myapp_add {json.dumps({'a': 2, 'b': 3})}"
                agent = await site.spawn(caller, f"{call}\nsay done")
                done = await agent.event("completion")
                assert (done["status"], done["final_text"]) == ("completed", "done")
                called = await agent.event("tool_call")
                assert (called["tool"], called["arguments"]) == ("myapp_add", {"a": 2, "b": 3})
                result = await agent.event("tool_result", call_id=called["call_id"])
                assert result["result"] == "5"
            await site.tidy()
