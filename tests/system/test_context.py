"""Shared Workspace Map-Reduce: children write, their parent gathers."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.anyio


async def test_children_write_to_rlm_context_and_the_parent_aggregates(site) -> None:
    async with site.caller("http-auto") as caller:
        part = {"descriptor": "part", "data": {"found": 7}}
        work = json.dumps({"message": f"call context_write {json.dumps(part)}"})
        agent = await site.spawn(
            caller,
            f"parallel\ncall session_message {work}\ncall session_message {work}\nend\n"
            'call context_read {"descriptor": "part"}\ncall context_list {}',
            new_session=True,
        )
        _, read, listed = [json.loads(text) for text in await agent.turn()]
        children = set((await agent.get())["child_session_ids"])
        assert {entry["session_id"] for entry in read["structured"]["entries"]} == children
        assert [entry["data"] for entry in read["structured"]["entries"]] == [{"found": 7}] * 2
        assert len(children) == 2
        assert children <= {entry["session_id"] for entry in listed["structured"]["entries"]}
        workspace = (
            site.server.home
            / "projects"
            / site.project["id"]
            / "workspaces"
            / site.project["default_workspace_id"]
        )
        for child in children:
            file = workspace / ".rlm-context" / f"{child}_part.json"
            assert json.loads(file.read_text()) == {"found": 7}
