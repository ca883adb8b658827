"""What several sessions made of the same task is compared, file by file."""

from __future__ import annotations

import shutil

import pytest

from tests.callers import ToolFailed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
SETTINGS = {"snapshots.mode": "on", "agents.default": "scripted"}


async def made(site, caller, project, *commands):
    found = []
    for command in commands:
        agent = await site.spawn(
            caller, f"exec {command}", project_id=project["id"], create_workspace=True
        )
        await agent.turn()
        found.append(agent)
    return found


async def test_sessions_are_compared_by_what_they_made(site, oubliette) -> None:
    project = await site.new_project()
    async with site.caller("http-auto") as caller:
        agents = await made(
            site, caller, project,
            "echo same > both; echo one > differs",
            "echo same > both; echo two > differs; echo 3 > alone",
            "echo same > both; echo one > differs",
            "true",
        )  # fmt: skip
        ids = [each.session_id for each in agents]
        found = await site.eyes.call("session_compare", project_id=project["id"], session_ids=ids)
    assert [(each["files"], each["insertions"]) for each in found["sessions"]] == [
        (2, 2), (3, 3), (2, 2), (0, 0),
    ]  # fmt: skip
    assert [each["same_as"] for each in found["sessions"]] == [None, None, ids[0], None]
    assert [(each["path"], each["outcomes"]) for each in found["files"]] == [
        ("alone", [0, 1, 0, 0]),
        ("both", [1, 1, 1, 0]),
        ("differs", [1, 2, 1, 0]),
    ]
    done = await oubliette("compare", *ids[:3])
    assert done.code == 0, done.err
    assert done.out.endswith("\n\n- A -\talone\nA B A\tdiffers\n")
    assert done.err == "3 files were changed, 2 of them differently\n"


async def test_sessions_of_another_project_are_not_there(site) -> None:
    project, other = await site.new_project(), await site.new_project()
    async with site.caller("http-auto") as caller:
        (mine,) = await made(site, caller, project, "true")
        (theirs,) = await made(site, caller, other, "true")
        with pytest.raises(ToolFailed, match=f"{theirs.session_id} not found"):
            await site.eyes.call(
                "session_compare",
                project_id=project["id"],
                session_ids=[mine.session_id, theirs.session_id],
            )
        with pytest.raises(ToolFailed, match="name each session once"):
            await site.eyes.call(
                "session_compare",
                project_id=project["id"],
                session_ids=[mine.session_id, mine.session_id],
            )
