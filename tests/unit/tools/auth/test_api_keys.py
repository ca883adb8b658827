"""Keys: made, checked, revoked."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from oubliette import ids
from oubliette.actors.ports.messages import PORTS, OpenPort, PortInfo, PortLink
from oubliette.errors import Forbidden, NotFound, Unauthenticated
from oubliette.kit import Actor, handles
from oubliette.kit.fair_loop import working_for
from oubliette.records import Session, Token
from oubliette.runtime.store.operations import PutSession, RevokeToken
from oubliette.testing.clock import VirtualClock
from oubliette.tools.auth import scopes
from oubliette.tools.auth.api_keys import ApiKeys
from oubliette.tools.auth.scopes import Scope
from oubliette.tools.registry import call
from oubliette.tools.spec import CallContext
from tests.unit.tools import toolkit

if TYPE_CHECKING:
    from oubliette.runtime.store.operations import Op, Result
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio

ADMIN = Scope(level="admin")
WRITE = Scope(level="write")
PROJECT = "proj_11111111111111111111111111"


def creator(scope: Scope = WRITE, expires_at: float | None = None) -> CallContext:
    return CallContext(
        principal="alice", token_id="t", scope=scope, transport="http", expires_at=expires_at
    )


async def test_a_key_has_its_id_and_a_secret_of_256_bits_and_only_a_digest_is_kept(
    bench: Bench,
) -> None:
    new = await bench.keys.create(name="k", scope=WRITE)
    prefix, secret = new.key.split(new.token.id)
    assert prefix == "oub_"
    assert len(secret.lstrip("_")) >= 43 or len(secret) == 44
    kept = await bench.reader.token(new.token.id)
    assert kept is not None
    assert len(kept.digest) == 32
    assert secret[1:].encode() not in msgspec.json.encode(kept)


async def test_a_good_key_is_known_again(bench: Bench) -> None:
    new = await bench.keys.create(name="k", scope=WRITE, principal="alice")
    assert bench.keys.verify(new.key, "http").principal == "alice"


async def test_the_work_of_a_task_is_that_of_the_key_that_it_was_admitted_with(
    bench: Bench,
) -> None:
    """Over HTTP, for git and at an open port; an agent's link works for its tree in any case."""
    keys = [await bench.keys.create(name=who, scope=WRITE, principal=who) for who in ("a", "b")]
    bench.keys.verify(keys[0].key, "http")
    assert working_for.get() == "a"
    await bench.keys.verify_on_link(keys[1].key, ids.new_id(ids.SESSION))
    assert working_for.get() == "a"
    with pytest.raises(Unauthenticated):
        bench.keys.verify(keys[1].key + "x", "http")
    assert working_for.get() == "a"
    bench.keys.verify(keys[1].key, "http")
    assert working_for.get() == "b"


async def test_keys_outlive_the_process(bench: Bench) -> None:
    new = await bench.keys.create(name="k", scope=WRITE)
    again = ApiKeys(bench.services.commit, bench.reader, bench.clock)
    await again.load()
    assert again.verify(new.key, "http").id == new.token.id


@pytest.mark.parametrize(
    "change",
    [
        lambda key: "",
        lambda key: "x" * 10_000,
        lambda key: key[:-1],
        lambda key: key + "A",
        lambda key: key[:-1] + ("A" if key[-1] != "A" else "B"),
        lambda key: key.upper(),
        lambda key: " " + key,
        lambda key: key + "\n",
        lambda key: key.replace("oub_", "oub-"),
        lambda key: f"oub_{ids.new_id(ids.TOKEN)}_{key[-43:]}",
        lambda key: key + "é",
        lambda key: "\x00" + key,
    ],
)
async def test_a_changed_key_is_refused_in_one_sentence(bench: Bench, change) -> None:
    new = await bench.keys.create(name="k", scope=WRITE)
    with pytest.raises(Unauthenticated) as refused:
        bench.keys.verify(change(new.key), "http")
    assert refused.value.message == "invalid or expired API key"


async def test_an_unknown_id_is_compared_as_long_as_a_known_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hmac

    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    for key in (f"oub_{ids.new_id(ids.TOKEN)}_{'a' * 43}", "rubbish"):
        with pytest.raises(Unauthenticated):
            bench.keys.verify(key, "http")
    assert [(len(a), len(b)) for a, b in compared] == [(32, 32), (32, 32)]


class SlowPorts(Actor):
    """Opens a port while the key of who asks for it is revoked."""

    def __init__(self, keys: ApiKeys) -> None:
        super().__init__()
        self._keys = keys

    @handles(OpenPort)
    async def _open(self, message: OpenPort) -> PortLink:
        await self._keys.revoke(message.token_id)
        info = PortInfo(
            name="p8000-0123456789",
            session_id=message.session_id,
            port=message.port,
            opened_at=0.0,
            closes_at=1.0,
            connections=0,
        )
        return PortLink(info=info, token="very-secret", seconds=60.0)  # noqa: S106 - no token


async def test_a_key_that_is_revoked_meanwhile_gets_no_link_to_a_port(bench: Bench) -> None:
    bench.system.spawn(SlowPorts, bench.keys, name=PORTS)
    bench.services.port_address = lambda name: f"http://{name}.localhost"
    _, context = await bench.key("write")
    project = await bench.project()
    session = await bench.session(project, principal=context.principal)
    result = await call(
        bench.services, context, "port_open", {"session_id": session.id, "port": 8000}
    )
    assert result.is_error
    assert "invalid or expired API key" in result.text
    assert "very-secret" not in str(result)


async def test_who_is_told_of_revocations_is_told_of_each_once(bench: Bench) -> None:
    told: list[str] = []
    bench.keys.on_revoked.append(told.append)
    keys = [await bench.keys.create(name=name, scope=ADMIN) for name in ("a", "b")]
    await bench.keys.revoke(keys[0].token.id)
    await bench.keys.revoke(keys[0].token.id)
    await bench.services.commit((RevokeToken(keys[1].token.id, 1.0),))  # as another node would
    await bench.keys.refresh()
    await bench.keys.refresh()
    assert told == [keys[0].token.id, keys[1].token.id]


async def test_a_key_that_is_first_seen_after_its_revocation_is_told_of_once(bench: Bench) -> None:
    """What it made here, by a call that another node has passed on, ends with it."""
    told: list[str] = []
    keys = ApiKeys(bench.services.commit, bench.reader, bench.clock)
    await keys.load()
    keys.on_revoked.append(told.append)
    good, revoked = [await bench.keys.create(name=name, scope=WRITE) for name in ("a", "b")]
    await bench.keys.revoke(revoked.token.id)
    await keys.refresh()
    await keys.refresh()
    assert told == [revoked.token.id]
    assert keys.verify(good.key, "http")


async def test_a_revoked_key_is_refused_before_the_revocation_is_even_stored(bench: Bench) -> None:
    new = await bench.keys.create(name="k", scope=WRITE)
    revoking = asyncio.create_task(bench.keys.revoke(new.token.id))
    await asyncio.sleep(0)
    with pytest.raises(Unauthenticated):
        bench.keys.verify(new.key, "http")
    assert await revoking
    assert not await bench.keys.revoke(new.token.id)
    kept = await bench.reader.token(new.token.id)
    assert kept is not None
    assert kept.revoked_at is not None


async def test_revoking_what_is_not_there_is_not_found(bench: Bench) -> None:
    with pytest.raises(NotFound):
        await bench.keys.revoke(ids.new_id(ids.TOKEN))


async def test_a_key_is_good_until_the_second_it_expires() -> None:
    clock = VirtualClock()
    async with toolkit.bench(clock) as bench:
        new = await bench.keys.create(name="k", scope=WRITE, expires_in=10)
        clock.advance(9.9)
        bench.keys.verify(new.key, "http")
        clock.advance(0.1)
        with pytest.raises(Unauthenticated):
            bench.keys.verify(new.key, "http")


async def test_the_last_use_is_written_later_and_told_at_once() -> None:
    clock = VirtualClock()
    async with toolkit.bench(clock) as bench:
        new = await bench.keys.create(name="k", scope=WRITE)
        clock.advance(5)
        used = clock.time()
        for _ in range(3):
            bench.keys.verify(new.key, "http")
        assert next(bench.keys.listed_after(None)).last_used_at == used
        kept = await bench.reader.token(new.token.id)
        assert kept is not None
        assert kept.last_used_at is None
        assert clock.pending == 1
        await bench.keys.aclose()
        kept = await bench.reader.token(new.token.id)
        assert kept is not None
        assert kept.last_used_at == used


async def test_last_uses_are_written_every_minute_at_most() -> None:
    clock = VirtualClock()
    async with toolkit.bench(clock) as bench:
        new = await bench.keys.create(name="k", scope=WRITE)
        bench.keys.verify(new.key, "http")
        used = clock.time()
        await clock.elapse(61)
        async with asyncio.timeout(5):
            while (await bench.reader.token(new.token.id)).last_used_at != used:
                await asyncio.sleep(0)


# ---------------------------------------------------------------------- owners


async def test_each_key_has_an_owner_of_its_own_unless_one_is_named(bench: Bench) -> None:
    first = await bench.keys.create(name="a", scope=WRITE)
    second = await bench.keys.create(name="b", scope=WRITE)
    third = await bench.keys.create(name="c", scope=WRITE, principal=first.token.principal)
    assert first.token.principal != second.token.principal
    assert third.token.principal == first.token.principal
    owner = await bench.reader.principal(first.token.principal)
    assert owner is not None
    assert owner.name == "a"


# ---------------------------------------------------------------------- minted keys


async def minted(bench: Bench, scope: Scope = WRITE, **fields) -> tuple[str, Session]:
    project = await bench.project(ids.new_uuid())
    new = await bench.keys.mint(creator(ADMIN), scope, **fields)
    session = await bench.session(project, live=True, minted_token_id=new.token.id)
    return new.key, session


async def test_a_minted_key_is_good_on_its_own_sessions_link_only(bench: Bench) -> None:
    key, session = await minted(bench)
    other = await bench.session(await bench.project("q"), live=True)
    token = await bench.keys.verify_on_link(key, session.id)
    assert token.principal == f"session:{session.id}"
    with pytest.raises(Unauthenticated):
        await bench.keys.verify_on_link(key, other.id)
    with pytest.raises(Unauthenticated):
        bench.keys.verify(key, "http")
    with pytest.raises(Unauthenticated):
        bench.keys.verify(key, "socket")


async def test_a_minted_key_works_before_the_spawn_that_made_it_returns(bench: Bench) -> None:
    """Its agent may be quicker; the session's record decides whose it is."""
    key, session = await minted(bench)
    first, second = await asyncio.gather(
        bench.keys.verify_on_link(key, session.id), bench.keys.verify_on_link(key, session.id)
    )
    assert first.session_id == second.session_id == session.id


async def test_nobody_else_can_bind_a_minted_key(bench: Bench) -> None:
    new = await bench.keys.mint(creator(ADMIN), WRITE)
    thief = await bench.session(await bench.project(), live=True)
    with pytest.raises(Unauthenticated):
        await bench.keys.verify_on_link(new.key, thief.id)
    await bench.put(PutSession(msgspec.structs.replace(thief, minted_token_id="tok_other")))
    with pytest.raises(Unauthenticated):
        await bench.keys.verify_on_link(new.key, thief.id)


async def test_a_minted_key_dies_with_its_session_and_stays_dead(bench: Bench) -> None:
    key, session = await minted(bench)
    await bench.keys.verify_on_link(key, session.id)
    await bench.keys.end_session(session.id)
    with pytest.raises(Unauthenticated):
        await bench.keys.verify_on_link(key, session.id)
    again = ApiKeys(bench.services.commit, bench.reader, bench.clock)
    await again.load()
    with pytest.raises(Unauthenticated):
        await again.verify_on_link(key, session.id)


async def test_a_key_of_a_session_that_ended_unseen_is_revoked_at_the_next_start(
    bench: Bench,
) -> None:
    """The server may be killed between the end of a session and that of its key."""
    key, session = await minted(bench)
    alive, other = await minted(bench)
    for each, of in ((key, session), (alive, other)):
        await bench.keys.verify_on_link(each, of.id)
    await bench.put(PutSession(msgspec.structs.replace(session, status="timed_out")))
    again = ApiKeys(bench.services.commit, bench.reader, bench.clock)
    await again.load()
    with pytest.raises(Unauthenticated):
        await again.verify_on_link(key, session.id)
    await again.verify_on_link(alive, other.id)


async def test_a_start_revokes_the_keys_of_ended_sessions_together(bench: Bench) -> None:
    project = await bench.project()
    for _ in range(20):
        new = await bench.keys.mint(creator(), WRITE)
        session = await bench.session(project, minted_token_id=new.token.id)
        await bench.keys.bind(new.token.id, session.id)
        await bench.put(PutSession(msgspec.structs.replace(session, status="completed")))
    transactions = []

    async def commit(ops: tuple[Op, ...]) -> Result:
        transactions.append(len(ops))
        return await bench.services.commit(ops)

    again = ApiKeys(commit, bench.reader, bench.clock)
    await again.load()
    assert transactions == [20]
    assert all(token.revoked_at is not None for token in await bench.reader.tokens())
    assert list(again.listed_after(None)) == []


async def test_ending_a_session_revokes_no_other_key(bench: Bench) -> None:
    ordinary = await bench.keys.create(name="k", scope=WRITE)
    key, session = await minted(bench)
    await bench.keys.verify_on_link(key, session.id)
    await bench.keys.end_session(ids.new_id(ids.SESSION))
    await bench.keys.verify_on_link(key, session.id)
    bench.keys.verify(ordinary.key, "socket", session.id)


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ("admin", "write"),
        ("write", "read"),
        ("write", f"project:{PROJECT}"),
        ("read", f"project:{PROJECT}"),
        (f"project:{PROJECT}", f"project:{PROJECT}:ro"),
        (f"project:{PROJECT}", "project:proj_22222222222222222222222222"),
    ],
)
async def test_a_minted_key_is_never_wider_than_its_creators(
    bench: Bench, inner: str, outer: str
) -> None:
    with pytest.raises(Forbidden, match="reaches further"):
        await bench.keys.mint(creator(scopes.parse(outer)), scopes.parse(inner))


async def test_a_minted_key_expires_no_later_than_its_creators() -> None:
    clock = VirtualClock()
    async with toolkit.bench(clock) as bench:
        end = clock.time() + 100
        for ttl, wanted in ((None, end), (50, end - 50), (500, end)):
            new = await bench.keys.mint(creator(ADMIN, expires_at=end), WRITE, ttl)
            assert new.token.expires_at == wanted


def test_a_stored_key_keeps_its_transports_under_the_name_of_earlier_releases() -> None:
    """A key of a session that became valid over HTTP would leave its link."""
    stored = {"id": "tok_1", "digest": "", "name": "n", "scope": "read", "principal": "p"}
    stored |= {"created_at": 1.0, "doors": ["socket"]}
    token = msgspec.convert(stored, Token, strict=False)
    assert token.transports == ("socket",)
    assert msgspec.to_builtins(token)["doors"] == ("socket",)


async def test_a_key_comes_after_those_of_a_node_whose_clock_is_ahead(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    with monkeypatch.context() as ahead:
        ahead.setattr(ids, "_last", 0)
        ahead.setattr(time, "time_ns", lambda: now + 3_600 * 10**9)
        other = await bench.keys.create(name="of a node that is ahead", scope=WRITE)
    monkeypatch.setattr(ids, "_last", 0)
    keys = ApiKeys(bench.services.commit, bench.reader, bench.clock)
    await keys.refresh()
    await keys.create(name="later", scope=WRITE)
    assert [token.name for token in keys.listed_after(None)][-2:] == [other.token.name, "later"]


async def test_what_changes_here_while_the_keys_are_read_anew_stays(bench: Bench) -> None:
    early = await bench.keys.create(name="early", scope=WRITE)
    gone = await bench.keys.create(name="gone", scope=WRITE)
    bound = await bench.keys.mint(creator(), WRITE)
    session = await bench.session(await bench.project(), minted_token_id=bound.token.id)

    class Changing:
        """A reader whose answer is old when it arrives."""

        async def tokens(self) -> list[Token]:
            found = await bench.reader.tokens()
            await keys.revoke(early.token.id)
            await keys.bind(bound.token.id, session.id)
            keys.forget(gone.token.id)
            self.late = await keys.create(name="late", scope=WRITE)
            return found

        def __getattr__(self, name: str):
            return getattr(bench.reader, name)

    reader = Changing()
    keys = ApiKeys(bench.services.commit, bench.reader, bench.clock)
    await keys.load()
    keys._reader = reader  # noqa: SLF001 - from now on
    await keys.refresh()
    assert keys.verify(reader.late.key, "http").name == "late"
    assert keys.recognise(bound.key).session_id == session.id
    assert keys.known(gone.key) is None
    with pytest.raises(Unauthenticated):
        keys.verify(early.key, "http")
