"""A server whose store is a PostgreSQL database: sessions work, and outlive both of the servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.files.home import DATABASE
from oubliette.testing.server import ServerProcess
from tests.system.site import Site

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
