"""A host outlives an upgrade of the server by one version of the protocol, and no more."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.containers.process import procfs
from tests.faults.here import Here
from tests.faults.history import check_log, check_nothing_left, deltas, texts

if TYPE_CHECKING:
    from oubliette.testing.server import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

TURN = 40.0  # seconds
OLD = (1, 1)
NEXT = (1, 2)  # understands the one before it
AFTER_NEXT = (2, 3)  # does not know the first one any more


@pytest.mark.whole
@pytest.mark.parametrize(
    ("before", "after"), [(OLD, NEXT), (NEXT, OLD)], ids=["upgrade", "downgrade"]
)
async def test_sessions_go_on_under_a_server_of_the_next_version(
    any_server: ServerProcess, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """In the middle of a call and of a stream; what comes afterwards is the new version's."""
    await any_server.start(versions=before)
    async with Here(any_server) as caller:
        waiting = await caller.spawn('call tester_approve {"what": "it"}\nsay approved')
        await caller.event("caller_tool_request", session_id=waiting, timeout=TURN)
        streaming = await caller.spawn("emit 20 40\nsleep 0.1\n" * 15 + "say streamed")
        await caller.event("delta", session_id=streaming, timeout=TURN)
        ((container, host),) = any_server.containers().items()
        await any_server.kill()
        await any_server.start(versions=after)
        await caller.listen(after=caller.next)
        caller.may.set()
        assert (await caller.turns_done(waiting, wait=TURN))["final_response"] == "approved"
        assert (await caller.turns_done(streaming, wait=TURN))["final_response"] == "streamed"
        assert list(any_server.containers()) == [container]
        assert deltas(await caller.log(streaming)) == list(range(20)) * 15
        said = texts(await caller.log(waiting))
        assert json.loads(said[0])["structured"] == {"approved": "it"}
        # One more turn, and a new agent beside it, in the host of the other version.
        await caller.call("session_message", session_id=waiting, message="say again")
        assert (await caller.turns_done(waiting, wait=TURN))["final_response"] == "again"
        fresh = await caller.spawn("say fresh")
        assert (await caller.turns_done(fresh, wait=TURN))["final_response"] == "fresh"
        assert list(any_server.containers()) == [container]
        # Once nobody is in it any more, the next container is of this server's own version.
        for session in (waiting, streaming, fresh):
            await caller.call("session_end", session_id=session)
            check_log(await caller.log(session))
        async with asyncio.timeout(TURN):
            await procfs.ended(host)
        last = await caller.spawn("say last")
        assert (await caller.turns_done(last, wait=TURN))["final_response"] == "last"
        assert container not in any_server.containers()
        check_nothing_left(any_server)


@pytest.mark.whole
async def test_a_host_of_a_version_that_is_too_old_is_replaced_with_a_reason(
    any_server: ServerProcess,
) -> None:
    await any_server.start(versions=OLD)
    async with Here(any_server) as caller:
        session = await caller.spawn("remember colour green\nsleep 60")
        await caller.event("message", session_id=session, timeout=TURN)
        ((container, host),) = any_server.containers().items()
        await any_server.kill()
        await any_server.start(versions=AFTER_NEXT)
        await caller.listen(after=caller.next)
        await caller.event("status", session_id=session, status="failed", timeout=TURN)
        reason = str((await caller.status(session))[1])
        assert "container lost" in reason
        assert "another version of the protocol, this server speaks 2 to 3" in reason
        async with asyncio.timeout(TURN):
            await procfs.ended(host)
        await caller.call("session_message", session_id=session, message="recall colour")
        assert (await caller.turns_done(session, wait=TURN))["final_response"] == "green"
        assert container not in any_server.containers()
        check_log(await caller.log(session))
