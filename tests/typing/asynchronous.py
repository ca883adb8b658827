"""A program on the asynchronous API, for pyright: what it is given has the types that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

import msgspec

import oubliette


class Verdict(msgspec.Struct):
    guilty: bool
    why: str


@dataclass
class Place:
    line: int


def find_order(order: str) -> dict[str, str]:
    """Look an order up."""
    return {"order": order}


async def ask_me(request: oubliette.PermissionRequest) -> bool:
    return request.text == "ls"


async def answers(project: oubliette.Project) -> None:
    assert_type(await project.run("What is new?"), oubliette.TurnResult)
    assert_type(await project.run("What is new?", returns=None), oubliette.TurnResult)
    assert_type(await project.run("Is it?", returns=Verdict), Verdict)
    assert_type(await project.run("Where?", returns=Place, attempts=2), Place)
    assert_type(await project.run("Which?", returns=list[int], tools=[find_order]), list[int])
    answer = await project.run("Why?", tools=[find_order], agent="opencode")
    assert_type(answer.text, str)
    assert_type(answer.usage.cost_usd, float | None)


async def parts(project: oubliette.Project) -> None:
    found = await project.map(["one", "two"], at_once=2)
    assert_type(found, list[oubliette.TurnResult | oubliette.OublietteError])
    typed = await project.map(["one", "two"], returns=Verdict)
    assert_type(typed, list[Verdict | oubliette.OublietteError])
    for each in typed:
        if isinstance(each, oubliette.OublietteError):
            assert_type(each.code, str)
        else:
            assert_type(each.why, str)


async def conversation(project: oubliette.Project) -> None:
    session = await project.spawn("Fix it", tools=[find_order], on_permission=ask_me)
    assert_type(session, oubliette.Session)
    async for event in session.events():
        assert_type(event, oubliette.Event)
        match event:
            case oubliette.Delta(text=text):
                assert_type(text, str)
            case oubliette.ToolCall(tool=tool, call_id=call_id):
                assert_type(tool, str)
                assert_type(call_id, str)
            case oubliette.Completion(status=status):
                assert_type(status, str)
            case _:
                assert_type(event.index, int)
    turn = await session.send("Go on", on_permission=oubliette.rules(allow=["read"]))
    assert_type(turn, oubliette.Turn)
    assert_type(await turn, oubliette.TurnResult)
    async for event in turn:
        assert_type(event, oubliette.Event)
    assert_type((await session.get()).status, str)
    assert_type(session.turn, oubliette.Turn | None)


async def main() -> None:
    async with oubliette.open(temporary=True) as ob:
        assert_type(ob, oubliette.Oubliette)
        project = await ob.project("shop", description="orders", limits={"max_agents": 3})
        assert_type(project, oubliette.Project)
        async with ob.caller("shop", [find_order], once="shop.db") as caller:
            assert_type(caller, oubliette.Caller)
            await project.spawn("Go", caller=caller)
        async with project.tree(max_agents=20, max_cost_usd=2.0) as tree:
            assert_type(tree, oubliette.Tree)
            assert_type(await tree.run("Is it?", returns=Verdict), Verdict)
    async with oubliette.connect("http://127.0.0.1:8080/mcp", "key") as remote:
        assert_type(remote, oubliette.Oubliette)
        assert_type(await remote.projects(), list[oubliette.ProjectInfo])
