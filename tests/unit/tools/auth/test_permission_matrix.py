"""Every cell of the permission matrix, tried."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oubliette import ids
from oubliette.errors import Forbidden, NotFound
from oubliette.tools.registry import TABLE, call
from tests.unit.tools.auth import permission_matrix

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[4] / "docs" / "permissions.md"
NEVER = "tool not allowed for this token scope"


async def arguments_about(bench: Bench, tool: Any, place: str, mine: Any, other: Any) -> Any:
    """Good arguments, about things that exist, in the project that is meant."""
    project = mine if place == "own" else other
    session = await bench.session(project, live=True)
    await bench.write(session)
    bench.open_requests.add("r")
    known = {
        "project_id": project.id,
        "session_id": session.id,
        "session_ids": [session.id, (await bench.session(project)).id],
        "workspace_id": project.default_workspace_id,
        "prompt": "p",
        "message": "m",
        "messages": ["m"],
        "command": "true",
        "index": 0,
        "turn": 1,
        "into": "work",
        "branch": "work",
        "allow_push": True,
        "port": 8000,
        "request_id": "r",
        "decision": "deny",
        "caller_id": "ant",
        "max_seconds": 0,
        "container_type": "base",
        "name": f"n{ids.new_id(ids.PROJECT)}",
        "scope": "read",
        "token_id": ids.new_id(ids.TOKEN),
    }
    fields = permission_matrix._fields(tool)
    wanted = {field.name for field in fields if field.required} | {"max_seconds"}
    named = {field.name for field in fields}
    if place != "none":
        about = {"project_id", "session_id"} & named
        wanted.add("project_id" if "project_id" in about else "session_id")
    return {name: known[name] for name in wanted & named}


async def told(
    bench: Bench, tool: Any, scope: Any, transport: str, arguments: Any, link: str
) -> str:
    """What the call is answered, in the words of the matrix."""
    if transport == "socket":
        new = await bench.keys.create(name="k", scope=scope, principal="alice")
        try:
            result = await bench.agents.call(new.key, link, tool.name, arguments)
        except Forbidden as refused:
            assert refused.message == NEVER
            return "no tool" if transport not in TABLE[tool.name].transports else "forbidden"
        listed = {each["name"] for each in await bench.agents.tools(new.key, link)}
        assert tool.name in listed
        missing = result["isError"] and " not found" in result["content"][0]["text"]
        return "not found" if missing else "yes"
    context = (await bench.key(str(scope), principal="alice"))[1]
    try:
        result = await call(bench.services, context, tool.name, arguments)
    except NotFound:
        return "no tool"
    if result.code == "forbidden":
        assert result.text.startswith(NEVER)
        return "forbidden"
    return "not found" if result.code == "not_found" else "yes"


# What a bench without containers, images and tokens of that id answers to those who may ask.
HAS_NONE = {"token_revoke", "image_rebuild", "container_refresh", "container_snapshot"}


CELLS = [
    (tool, place, name)
    for tool in TABLE.values()
    for place in permission_matrix.places(tool)
    for name in permission_matrix.SCOPES
]


@pytest.mark.parametrize("transport", permission_matrix.TRANSPORTS)
async def test_each_cell_of_the_matrix_holds(bench: Bench, transport: Any) -> None:
    for number, (tool, place, name) in enumerate(CELLS):
        mine, other = await bench.project(f"m{number}"), await bench.project(f"o{number}")
        scope = permission_matrix.SCOPES[name]
        wanted = permission_matrix.answer(tool, scope, place, transport)
        bound = type(scope)(level=scope.level, project=scope.project and mine.id)
        arguments = await arguments_about(bench, tool, place, mine, other)
        link = (await bench.session(mine)).id
        found = await told(bench, tool, bound, transport, arguments, link)
        if tool.name in HAS_NONE and found == "not found":
            found = "yes" if wanted == "yes" else found
        assert found == wanted, (tool.name, name, place, transport)


def test_the_page_is_made_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == permission_matrix.markdown()
