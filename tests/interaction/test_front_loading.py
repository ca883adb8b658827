"""The front before the MCP library is there: it answers, waits, stops, and fails out loud."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
import threading

import pytest

from oubliette.kit import Actor, Down, handles
from oubliette.mcp_front.sdk import LOADING
from tests.callers import HttpError
from tests.interaction.frontkit import world

pytestmark = pytest.mark.anyio


class Imports:
    """Stands in for the import of the library, and ends when it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.go = threading.Event()
        self.names: list[str] = []

    def __call__(self, name: str):
        self.names.append(name)
        assert self.go.wait(10)
        if self.error is not None:
            raise self.error
        return importlib.__import__(name)


@pytest.fixture
def imports(mocker):
    stand_in = Imports()
    mocker.patch("oubliette.mcp_front.sdk.import_module", stand_in)
    yield stand_in
    stand_in.go.set()


async def ask(caller, path):
    async with caller.http.request("GET", path=path) as response:
        return response.status, [m async for m in response.messages()][0]


async def test_health_answers_before_the_library_is_there_and_readiness_says_so(imports):
    async with world() as w, w.caller() as caller, asyncio.timeout(60):
        health, _ = await ask(caller, "/health")
        ready = await ask(caller, "/ready")
        imports.go.set()
        await caller.ask("tools/list", {})
        later, _ = await ask(caller, "/ready")
    assert health == 200
    assert ready == (503, {"ready": False, "reasons": [LOADING]})
    assert later == 200


async def test_a_request_that_comes_too_early_is_answered_once_the_library_is_there(imports):
    async with world() as w, w.caller() as caller, asyncio.timeout(60):
        early = asyncio.create_task(caller.ask("tools/list", {}))
        assert (await ask(caller, "/health"))[0] == 200  # the loop is free meanwhile
        assert not early.done()
        imports.go.set()
        assert (await early)["tools"]


async def test_a_plain_call_needs_no_library(imports):
    async with world() as w, w.caller() as caller, asyncio.timeout(60):
        said = (await caller.call("echo", text="early"))["said"]
        ready, _ = await ask(caller, "/ready")
        imports.go.set()  # an import cannot be broken off, so the end waits for it
    assert (said, ready) == ({"text": "early"}, 503)


async def test_a_listener_that_comes_too_early_is_registered_once_the_library_is_there(imports):
    async with world() as w, w.caller() as caller, asyncio.timeout(60):
        with pytest.raises(TimeoutError):
            await caller.listen(timeout=0.1)
        assert caller.of("listening") == []
        listening = asyncio.create_task(caller.listen())
        assert (await ask(caller, "/health"))[0] == 200
        assert not listening.done()
        imports.go.set()
        await listening
        assert len(caller.of("listening")) == 1


async def test_a_call_that_only_the_library_can_judge_waits_for_it(imports):
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"experimental": {"unheard/of": {}}},
    }
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "echo", "arguments": {}, "_meta": meta},
    }
    headers = {
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "echo",
    }

    async def send(caller):
        async with caller.http.request("POST", json_body=message, headers=headers) as response:
            return [m async for m in response.messages()][0]["result"]["structuredContent"]

    async with world() as w, w.caller() as caller, asyncio.timeout(60):
        early = asyncio.create_task(send(caller))
        assert (await ask(caller, "/health"))[0] == 200
        assert not early.done()
        imports.go.set()
        assert (await early)["said"] == {}


async def test_a_session_that_is_not_known_is_refused_once_the_library_is_there(imports):
    async with world() as w, w.caller() as caller, asyncio.timeout(60):
        caller.modern = False
        caller.http.headers |= {"mcp-session-id": "0" * 32, "mcp-protocol-version": "2025-11-25"}
        early = asyncio.create_task(caller.ask("tools/call", {"name": "echo", "arguments": {}}))
        assert (await ask(caller, "/health"))[0] == 200
        assert not early.done()
        imports.go.set()
        with pytest.raises(HttpError) as refused:
            await early
    assert (refused.value.status, w.calls) == (404, [])


async def test_a_server_that_stops_meanwhile_imports_nothing_more(imports):
    async with world() as w, w.caller() as caller, asyncio.timeout(60):
        call = asyncio.create_task(caller.ask("tools/list", {}))
        await ask(caller, "/health")
        stopped = asyncio.create_task(w.actor.stop(5.0))
        while (await ask(caller, "/ready"))[1]["reasons"] != ["server stopping"]:
            pass
        imports.go.set()
        await stopped
        with pytest.raises(Exception, match="503|server stopping|closed"):
            await call
    assert len(imports.names) == 1


async def test_a_library_that_cannot_be_imported_ends_the_front(imports):
    class Watcher(Actor):
        def __init__(self, ended):
            super().__init__()
            self.ended = ended

        def on_start(self):
            self.watch(self.system.ref("front"))

        @handles(Down)
        def _down(self, message):
            self.ended.set_result(message)

    imports.error = ImportError("no module named pydantic")
    async with world() as w, asyncio.timeout(60):
        ended = asyncio.get_running_loop().create_future()
        w.system.spawn(Watcher, ended)
        imports.go.set()
        down = await ended
    assert (down.reason, down.error) == ("failed", "ImportError: no module named pydantic")


def test_the_server_is_imported_without_the_library():
    program = (
        "import sys, oubliette.server;"
        "print(*(name for name in ('mcp', 'mcp_types', 'pydantic', 'docker', 'typer')"
        " if name in sys.modules))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.split() == []
