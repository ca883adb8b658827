"""Who called what, and how often they may."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
from mcp.shared.exceptions import MCPError

from oubliette.testing.server import ServerProcess
from tests.callers import HttpCaller, SdkCaller, ToolFailed
from tests.http_client import HttpError
from tests.system.site import Site

pytestmark = pytest.mark.anyio


def audit(home, *options: str) -> list[dict]:
    done = subprocess.run(
        [sys.executable, "-m", "oubliette", "audit", "--home", home, "-o", "json", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_the_audit_log_tells_who_called_what_and_never_a_secret(zygote) -> None:
    async with ServerProcess(zygote=zygote) as server:
        await server.start()
        site = Site(server)
        async with site.eyes:
            await site.open()
            token = server.token("write")
            async with HttpCaller(server.url, token, caller_id="shop") as caller:
                asked = json.dumps({"name": "by-an-agent"})
                agent = await site.spawn(
                    caller,
                    f"say very-private\ncall oubliette_project_create {asked}",
                    api_key_scope="read",
                )
                refused = await agent.outcome()
                assert "insufficient permissions" in refused["text"]
                with pytest.raises(ToolFailed):
                    await caller.call("project_get", project_id="proj_" + "0" * 26)
                with pytest.raises(ToolFailed):
                    await caller.call("token_create", name="mine", scope="admin")
                with pytest.raises(ToolFailed):
                    await caller.call(
                        "caller_tool_response",
                        session_id=f"very-private {token}",
                        request_id="r",
                        result=1,
                    )
                record = await site.eyes.call("session_get", session_id=agent.session_id)
            gone = server.token("write")
            gone_id = gone.split("_tok_")[1].split("_")[0]
            await site.eyes.call("token_revoke", token_id=f"tok_{gone_id}")
            with pytest.raises(HttpError):
                async with HttpCaller(server.url, gone, caller_id="late") as late:
                    await late.call("project_list")
        await server.stop()
        lines = audit(server.home, "--tail", "1000")
        kept = "".join(path.read_text() for path in server.home.glob("audit.jsonl*"))

        def one(**fields):
            (found,) = [each for each in lines if fields.items() <= each.items()]
            return found

        spawned = one(tool="session_spawn")
        assert (spawned["project_id"], spawned["target_session_id"], spawned["outcome"]) == (
            site.project["id"],
            agent.session_id,
            "ok",
        )
        assert (spawned["transport"], spawned["token_id"] in token) == ("http", True)
        assert spawned["seconds"] > 0
        by_agent = one(tool="project_create", transport="socket")
        assert by_agent["session_id"] == agent.session_id
        assert by_agent["outcome"] == "forbidden"
        assert by_agent["principal"] == f"session:{agent.session_id}"
        assert one(tool="project_get")["outcome"] == "not_found"
        assert one(tool="token_create", transport="http")["outcome"] == "forbidden"
        assert one(tool="caller_tool_response")["target_session_id"] is None
        assert one(outcome="unauthenticated")["token_id"] == f"tok_{gone_id}"
        assert record["project_id"] == site.project["id"]
        assert "very-private" not in kept
        assert token not in kept
        assert token.split("_", 3)[3] not in kept  # the secret, which may have one too
        times = [each["ts"] for each in lines]
        assert times == sorted(times)
        assert audit(server.home, "--tool", "project_get") == [one(tool="project_get")]
        assert audit(server.home, "--session", agent.session_id, "--failed") == [by_agent]
        assert audit(server.home, "--tail", "1") == lines[-1:]


async def flood(site, agent_key, count):
    outcomes = await asyncio.gather(
        *(agent_key.call("project_list") for _ in range(count)), return_exceptions=True
    )
    return [each for each in outcomes if isinstance(each, BaseException)]


async def test_a_flood_is_refused_with_the_time_to_wait_and_slows_nobody_else(zygote) -> None:
    settings = {"callers.calls_per_second": 5, "callers.calls_burst": 20}
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        async with (
            HttpCaller(server.url, server.token("write"), caller_id="flood") as noisy,
            HttpCaller(server.url, server.token("write"), caller_id="calm") as calm,
        ):
            refused = await flood(server, noisy, 40)
            assert 10 < len(refused) <= 25
            assert {type(each) for each in refused} == {HttpError}
            assert {each.status for each in refused} == {429}
            assert {each.headers["retry-after"] for each in refused} == {"1"}
            assert all(b"5 a second are allowed, 20 at once" in each.body for each in refused)
            for _ in range(10):
                await calm.call("project_list")


@pytest.mark.whole
async def test_a_client_of_the_sdk_goes_on_with_its_session_after_a_refusal(zygote) -> None:
    """429 with Retry-After, without ending the client's session."""
    settings = {"callers.calls_per_second": 20, "callers.calls_burst": 5}
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        for mode in ("legacy", "auto"):
            async with SdkCaller(
                server.url, server.token("write"), caller_id="sdk", mode=mode
            ) as caller:
                refused = good = 0
                async with asyncio.timeout(20):
                    while not (refused and good > 5):  # the bucket fills while we go on
                        try:
                            await caller.call("project_list")
                            good += bool(refused)
                        except MCPError:
                            refused += 1


async def test_an_agent_that_calls_too_often_is_told_so_over_its_link(zygote) -> None:
    settings = {"callers.calls_per_second": 1, "callers.calls_burst": 25}
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        site = Site(server)
        async with site.eyes:
            await site.open()
            async with HttpCaller(server.url, server.token("write"), caller_id="shop") as caller:
                agent = await site.spawn(
                    caller,
                    "repeat 40 call oubliette_project_list {}\ncall oubliette_project_list {}",
                    api_key_scope="read",
                )
                repeated, last = [json.loads(text) for text in await agent.turn()]
                assert 0 < repeated["errors"] <= 20
                assert last["is_error"]
                assert "1 a second are allowed, 25 at once" in last["text"]
                again = await agent.ask("say 1")
                assert again == 1


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["http-auto", "sdk-legacy"])
async def test_answers_that_come_too_fast_are_sent_again_and_none_is_lost(zygote, kind) -> None:
    settings = {"callers.calls_per_second": 5, "callers.calls_burst": 12}
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        site = Site(server)
        async with (
            site.eyes,
            site.caller(kind, tools={"number": lambda n: n}) as caller,
        ):
            await site.open()
            await caller.listen()
            calls = [f'call myapp_number {{"n": {n}}}' for n in range(20)]
            agent = await site.spawn(caller, "\n".join(["parallel", *calls, "end"]))
            await caller.event("completion", session_id=agent.session_id, timeout=60)
            outcomes = json.loads((await agent.turn())[-1])
            assert [each["text"] for each in outcomes] == [str(n) for n in range(20)]
