"""What runs with a key ends when the key is revoked, whatever it is and however it came."""

from __future__ import annotations

import asyncio

import pytest

from tests.callers import ToolFailed

pytestmark = [pytest.mark.anyio, pytest.mark.whole, pytest.mark.timeout(240)]

REFUSED = "invalid or expired API key"
COMMAND = "exec 3> alive; echo > begun; exec sleep 600"


async def test_commands_waits_and_listeners_end_with_their_key(site):
    """A command is killed, and another key of the same principal is not concerned."""
    admin, project = site.eyes, site.project["id"]
    made = await admin.call("token_create", name="x", scope="write")
    owner = {"principal": made["principal"]}
    other = await admin.call("token_create", name="y", scope="write", **owner)
    place = {"project_id": project}
    await admin.call("container_exec", command="mkfifo begun alive", **place)
    alive = asyncio.ensure_future(
        admin.call("container_exec", command="cat alive", timeout_seconds=300, **place)
    )
    async with (
        site.caller("http-auto", token=made["token"]) as caller,
        site.caller("http-legacy", token=other["token"]) as kept,
        asyncio.timeout(200),
    ):
        agent = await site.spawn(kept, "say here")
        await agent.turn()
        await caller.listen()
        calls = [
            asyncio.ensure_future(caller.call(tool, **arguments))
            for tool, arguments in {
                "container_exec": {"command": COMMAND, **place},
                "session_events": {
                    "session_id": agent.session_id,
                    "since_index": agent.log[-1]["index"] + 100,
                    "wait_seconds": 60,
                },
            }.items()
        ]
        stays = asyncio.ensure_future(
            kept.call(
                "session_events", session_id=agent.session_id, since_index=1000, wait_seconds=60
            )
        )
        await admin.call("container_exec", command="cat begun", **place)
        await admin.call("token_revoke", token_id=made["token_id"])
        for call in calls:
            with pytest.raises(ToolFailed, match=REFUSED):
                await call
        assert await caller.listener_ended() == "key revoked or expired"
        assert (await alive)["exit_code"] == 0  # nothing holds the pipe open any more
        assert not stays.done()
        await kept.call("session_get", session_id=agent.session_id)
        stays.cancel()
        await asyncio.wait([stays])
