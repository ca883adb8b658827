"""A program on the blocking API, for pyright: what it is given has the types that it needs."""

from __future__ import annotations

from typing import TypedDict, assert_type

import oubliette
from oubliette import sync


class Verdict(TypedDict):
    guilty: bool
    why: str


def find_order(order: str) -> dict[str, str]:
    """Look an order up."""
    return {"order": order}


def ask_me(request: oubliette.PermissionRequest) -> str:
    return "allow" if request.text == "ls" else "deny"


def answers(project: oubliette.sync.Project) -> None:
    assert_type(project.run("What is new?").text, str)
    assert_type(project.run("Is it?", returns=Verdict), Verdict)
    assert_type(project.run("Which?", returns=list[int], tools=[find_order]), list[int])
    found = project.map(["one", "two"], at_once=2)
    assert_type(found, list[oubliette.TurnResult | oubliette.OublietteError])
    assert_type(
        project.map(["one"], returns=Verdict, attempts=1), list[Verdict | oubliette.OublietteError]
    )


def conversation(project: sync.Project) -> None:
    session = project.spawn("Fix it", on_permission=ask_me)
    assert_type(session, sync.Session)
    events = session.events()
    for event in events:
        match event:
            case oubliette.Message(text=text):
                assert_type(text, str)
            case oubliette.ToolResult(is_error=is_error):
                assert_type(is_error, bool)
            case _:
                assert_type(event, oubliette.Event)
    assert_type(events.cursor, int)
    turn = session.send("Go on", tools=[find_order])
    assert_type(turn.result(timeout=5), oubliette.TurnResult)
    assert_type([event.type for event in turn], list[str])
    assert_type(session.turn, sync.Turn | None)


def main() -> None:
    with oubliette.sync.open(temporary=True) as ob:
        assert_type(ob, sync.Oubliette)
        project = ob.project("shop", agent="opencode")
        with ob.caller("shop", [find_order]) as caller:
            assert_type(caller, sync.Caller)
            project.spawn("Go", caller=caller)
        with project.tree(max_agents=20) as tree:
            assert_type(tree.run("Is it?"), oubliette.TurnResult)
    with oubliette.sync.connect("http://127.0.0.1:8080/mcp", "key") as remote:
        assert_type(remote.projects(), list[oubliette.ProjectInfo])
