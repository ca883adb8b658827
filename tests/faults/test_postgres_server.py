"""A server whose store is a PostgreSQL database: sessions work, and outlive both of the servers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.runtime.files.home import DATABASE
from oubliette.testing.server import ServerProcess
from tests.system.site import Site
from tests.system.wire_client import WireClient

if TYPE_CHECKING:
    from oubliette.testing.fork_server import Zygote
    from tests.postgres import PostgresServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.whole,
    pytest.mark.timeout(180),
    pytest.mark.requires("postgres"),
]

COLD = 60.0


async def test_a_session_goes_on_after_its_server_and_the_database_were_killed(
    own_postgres: PostgresServer, zygote: Zygote
) -> None:
    settings = {"store.database": own_postgres.new_database(), "server.on_stop": "keep"}
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        try:
            await server.start()
            site = Site(server)
            async with site.eyes, site.caller("http-auto") as caller:
                await site.open()
                agent = await site.spawn(caller, "say hello")
                assert await agent.turn(COLD) == ["hello"]
                await server.kill()
                await server.start()
                await agent.say("say again")
                assert await agent.turn(COLD) == ["again"]
                own_postgres.kill()
                own_postgres.start()
                await agent.say("say still")
                assert await agent.turn(COLD) == ["still"]
                log = [event["index"] for event in agent.log]
                assert log == list(range(len(log)))
                assert not (server.home / DATABASE).exists()
                await site.tidy()
        finally:
            print(server.log()[-20_000:])


async def test_a_name_from_a_link_that_no_text_could_hold_harms_no_other_call(
    own_postgres: PostgresServer, zygote: Zygote
) -> None:
    settings = {"store.database": own_postgres.new_database()}
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        site = Site(server)
        async with site.eyes, site.caller("http-auto", tools={"wait": lambda: "done"}) as caller:
            await site.open()
            await caller.listen()
            agent = await site.spawn(caller, "say here")
            await agent.turn(COLD)
            async with WireClient.connect(site, agent.session_id) as link, asyncio.timeout(COLD):
                names = {1: "good", 2: "a\0b", 3: "\0", 4: "\ud800", 5: "after"}
                for number, name in names.items():
                    params = {"tool": "wait", "arguments": {}, "call_id": name}
                    await link.send({"id": number, "method": "caller_tool", "params": params})
                answers: dict[int, Any] = {}
                while len(answers) < len(names):
                    answer = await link.receive()
                    if "id" in answer:
                        answers[answer["id"]] = answer
            assert [answers[number].get("result") for number in names] == [
                "done", None, None, None, "done",
            ]  # fmt: skip
            for number in (2, 3, 4):
                error = answers[number]["error"]
                assert (error["code"], "call_id: " in error["message"]) == (-32602, True)
