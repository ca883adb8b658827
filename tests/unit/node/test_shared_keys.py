"""A key that is made or revoked on one node counts on the others at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from oubliette.actors.store.actor import StoreActor
from oubliette.clock import SystemClock
from oubliette.errors import Unauthenticated
from oubliette.kit import System
from oubliette.node.shared_keys import SharedKeys
from oubliette.runtime.store.operations import TouchToken
from oubliette.runtime.store.reader import Reader
from oubliette.tools.auth.api_keys import ApiKeys
from oubliette.tools.auth.scopes import Scope
from oubliette.tools.services import commits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = [pytest.mark.anyio, pytest.mark.requires("postgres")]

WAIT = 20.0
SCOPE = Scope(level="write")


class KeyNode:
    """The keys of one node."""

    def __init__(self, keys: ApiKeys, commit) -> None:
        self.keys = keys
        self.commit = commit

    def knows(self, key: str) -> bool:
        try:
            self.keys.verify(key, "http")
        except Unauthenticated:
            return False
        return True

    async def until(self, condition: Callable[[], bool], seconds: float = WAIT) -> float:
        """Wait for something that nobody tells; return how long it took."""
        begun = time.monotonic()
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.005)
        return time.monotonic() - begun


@contextlib.asynccontextmanager
async def node(url: str, name: str) -> AsyncIterator[KeyNode]:
    from oubliette.runtime.store.postgres.database import PostgresDatabase
    from oubliette.runtime.store.postgres.notices import Notices

    database = await asyncio.to_thread(PostgresDatabase, url)
    reader = Reader(database)
    notices = Notices(url, name)
    notices.start()
    async with System(name) as system:
        commit = commits(system.spawn(StoreActor, database, name="store"))
        keys = ApiKeys(commit, reader, SystemClock())
        await keys.load()
        shared = SharedKeys(keys, notices)
        shared.start()
        try:
            yield KeyNode(keys, commit)
        finally:
            await asyncio.to_thread(notices.close)
            await shared.aclose()
            await keys.aclose()
    await reader.aclose()


async def test_keys_that_are_made_and_revoked_on_one_node_count_on_the_other(postgres_url) -> None:
    async with node(postgres_url, "a") as a, node(postgres_url, "b") as b:
        new = await a.keys.create(name="k", scope=SCOPE)
        assert a.knows(new.key)
        assert await b.until(lambda: b.knows(new.key)) < 1.0
        assert await b.keys.revoke(new.token.id)
        assert await a.until(lambda: not a.knows(new.key)) < 1.0


async def test_a_last_use_that_is_written_late_does_not_bring_a_revoked_key_back(
    postgres_url,
) -> None:
    import psycopg

    async with node(postgres_url, "a") as a, node(postgres_url, "b") as b:
        new = await a.keys.create(name="k", scope=SCOPE)
        await b.until(lambda: b.knows(new.key))
        await b.keys.revoke(new.token.id)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            # As of a node that had read the token before it was revoked.
            connection.execute(
                "UPDATE tokens SET data = convert_to(regexp_replace(convert_from(data, 'UTF8'),"
                " '\"revoked_at\":[0-9.]+', '\"revoked_at\":null'), 'UTF8')"
            )
        await a.keys.refresh()
        assert not a.knows(new.key)
        again = ApiKeys(a.commit, a.keys._reader, SystemClock())  # noqa: SLF001 - a fresh node
        await again.load()
        with pytest.raises(Unauthenticated):
            again.verify(new.key, "http")


async def test_last_uses_are_not_told_to_the_other_nodes(postgres_url) -> None:
    import psycopg

    async with node(postgres_url, "a") as a:
        new = await a.keys.create(name='"last_used_at":1', scope=SCOPE)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("LISTEN oubliette_keys")
            for used in (1.5, 2.5):
                await a.commit((TouchToken(new.token.id, used),))
            await a.keys.revoke(new.token.id)
            await a.commit((TouchToken(new.token.id, 3.5),))
            connection.execute("SELECT 1")
            assert len(list(connection.notifies(timeout=0.1))) == 1


async def test_keys_changed_while_the_database_was_away_are_read_when_it_is_back(
    own_postgres,
) -> None:
    url = own_postgres.new_database()
    async with node(url, "a") as a:
        async with node(url, "b") as b:
            new = await b.keys.create(name="k", scope=SCOPE)
            await a.until(lambda: a.knows(new.key))
        own_postgres.restart()
        own_postgres.execute(
            "DELETE FROM tokens", database=url.rpartition("@/")[2].partition("?")[0]
        )
        await a.until(lambda: not a.knows(new.key))
