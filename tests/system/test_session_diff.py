"""What an agent has changed can be looked at by tool, on the command line and from Python."""

from __future__ import annotations

import shutil

import pytest

import oubliette as ob
from tests.callers import ToolFailed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
SETTINGS = {"snapshots.mode": "on", "agents.default": "scripted"}


async def two_turns(site, caller):
    project = await site.new_project()
    agent = await site.spawn(caller, "exec printf 'a\\n' > file", project_id=project["id"])
    await agent.turn()
    await agent.say("exec printf 'b\\n' >> file; printf '\\0' > binary")
    await agent.turn()
    return agent


async def test_a_diff_is_there_as_soon_as_its_turn_is_over(site) -> None:
    async with site.caller("http-auto") as caller:
        agent = await two_turns(site, caller)
        whole = await site.eyes.call("session_diff", session_id=agent.session_id)
        first = await site.eyes.call(
            "session_diff", session_id=agent.session_id, turn=1, format="stat"
        )
    assert "+a\n+b\n" in whole["patch"]
    assert (whole["files"], whole["insertions"], whole["binary_files"]) == (2, 2, 1)
    assert (whole["from_snapshot"], whole["to_snapshot"]) == (None, "2")
    assert first["changes"] == [
        {"path": "file", "status": "added", "insertions": 1, "deletions": 0, "binary": False}
    ]
    assert first["patch"] is None


async def test_pages_of_a_large_patch_make_it_whole(site) -> None:
    project = await site.new_project()
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "exec seq 1 120000 > numbers", project_id=project["id"])
        await agent.turn()
        pieces, cursor = [], None
        while True:
            page = await site.eyes.call("session_diff", session_id=agent.session_id, cursor=cursor)
            pieces.append(page["patch"])
            cursor = page["next_cursor"]
            if cursor is None:
                break
        await agent.say("exec rm numbers")
        await agent.turn()
    assert len(pieces) > 1
    assert all(piece.endswith("\n") for piece in pieces)
    lines = "".join(pieces).splitlines()
    assert lines[-120_000:] == [f"+{number}" for number in range(1, 120_001)]
    assert page["insertions"] == 120_000


@pytest.mark.whole
async def test_the_command_prints_the_patch_or_the_files(site, oubliette) -> None:
    async with site.caller("http-auto") as caller:
        agent = await two_turns(site, caller)
    whole = await oubliette("diff", agent.session_id)
    assert whole.code == 0, whole.err
    assert "+++ b/file\n@@ -0,0 +1,2 @@\n+a\n+b\n" in whole.out
    assert whole.err == "2 files, +2 -0 lines, 1 of the files binary\n"
    stat = await oubliette("diff", agent.session_id, "file", "--turn", "2", "--stat")
    assert stat.out == "M\t+1 -0\tfile\n"
    shown = await oubliette("diff", agent.session_id, "--from", "1", "--stat", "-o", "json")
    assert [each["path"] for each in shown.json["changes"]] == ["binary", "file"]
    missing = await oubliette("diff", agent.session_id, "--turn", "9")
    assert missing.code == 3
    assert "the session has: 1, 2-start, 2" in missing.err


async def test_a_program_gets_all_pages_at_once(site) -> None:
    async with site.caller("http-auto") as caller:
        agent = await two_turns(site, caller)
    async with ob.connect(site.server.url, token=site.server.token("read")) as system:
        session = await system.session(agent.session_id)
        found = await session.diff()
        assert (found.files, found.insertions, found.to_snapshot) == (2, 2, "2")
        assert [each.path for each in found.changes if each.binary] == ["binary"]
        assert "+a\n+b\n" in (found.patch or "")
        assert (await session.diff(turn=1, patch=False)).patch is None


async def test_a_key_of_another_project_does_not_learn_of_the_session(site) -> None:
    other = await site.new_project()
    async with site.caller("http-auto") as caller:
        agent = await two_turns(site, caller)
    key = site.server.token(f"project:{other['id']}")
    async with site.caller("http-auto", token=key) as stranger:
        with pytest.raises(ToolFailed, match="not found"):
            await stranger.call("session_diff", session_id=agent.session_id)
