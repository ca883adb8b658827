"""The project is taken from the record; who does not own a session cannot converse with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oubliette import ids
from oubliette.actors.messages import EndSession
from oubliette.runtime.store.operations import DeleteSessionEvents
from oubliette.runtime.store.queries import event_log
from oubliette.tools.registry import TABLE

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio


async def world(bench: Bench) -> dict[str, Any]:
    mine, other = await bench.project("mine"), await bench.project("other")
    session = await bench.session(other, live=True)
    await bench.write(session, text="secret")
    return {
        "mine": mine,
        "other": other,
        "session": session,
        "arguments": {
            "project_id": other.id,
            "session_id": session.id,
            "session_ids": [session.id, (await bench.session(other)).id],
            "workspace_id": other.default_workspace_id,
            "prompt": "p",
            "message": "m",
            "messages": ["m"],
            "command": "true",
            "path": "x",
            "text": "x",
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
        },
    }


BOUND = [
    ("project_get", "project_id"),
    ("project_delete", "project_id"),
    ("repository_fetch", "project_id"),
    ("repository_branches", "project_id"),
    ("container_start", "project_id"),
    ("container_stop", "project_id"),
    ("container_exec", "project_id command"),
    ("container_logs", "project_id"),
    ("container_refresh", "project_id"),
    ("container_snapshot", "project_id"),
    ("session_spawn", "project_id prompt"),
    ("session_message", "project_id message"),
    ("session_message", "session_id message"),
    ("session_map", "project_id messages"),
    ("session_interrupt", "session_id"),
    ("session_end", "session_id"),
    ("session_get", "session_id"),
    ("session_list", "project_id"),
    ("session_events", "session_id"),
    ("event_read", "session_id index"),
    ("event_list", "project_id"),
    ("event_list", "session_id"),
    ("session_log", "session_id"),
    ("session_diff", "session_id"),
    ("session_compare", "project_id session_ids"),
    ("session_export", "session_id"),
    ("checkpoint", "session_id"),
    ("session_restore", "session_id turn"),
    ("session_fork", "session_id prompt"),
    ("session_merge", "session_id into"),
    ("session_push", "session_id branch"),
    ("session_cleanup", "project_id"),
    ("workspace_list", "project_id"),
    ("workspace_delete", "project_id workspace_id"),
    ("file_list", "project_id"),
    ("file_read", "project_id path"),
    ("file_write", "project_id path text"),
    ("file_delete", "project_id path"),
    ("port_open", "session_id port"),
    ("port_close", "session_id port"),
    ("port_list", "session_id"),
    ("config_limits", "project_id"),
    ("config_limits", "session_id"),
    ("tree_get", "session_id"),
    ("tree_list", "project_id"),
    ("usage_report", "project_id"),
    ("caller_tool_progress", "session_id request_id message"),
    ("caller_tool_response", "session_id request_id"),
    ("permission_list", "project_id"),
    ("permission_response", "session_id request_id decision"),
]


def test_every_tool_that_takes_an_id_of_a_project_or_session_is_tried() -> None:
    named = {name for name, _ in BOUND}
    for tool in TABLE.values():
        if tool.unbound:
            continue  # a key that is bound to a project may not call it at all
        if {"project_id", "session_id"} & set(tool.params.__struct_fields__):
            assert tool.name in named


@pytest.mark.parametrize(("tool", "fields"), BOUND)
async def test_another_project_is_not_there_for_a_bound_key(
    bench: Bench, tool: str, fields: str
) -> None:
    """Not even that it exists is told: the answer is that for an id which never was."""
    there = await world(bench)
    arguments = {name: there["arguments"][name] for name in fields.split()}
    if tool == "session_cleanup":
        arguments["max_age_hours"] = 0
    scope = f"project:{there['mine'].id}"
    refused = await bench.call(tool, arguments, scope=scope)
    assert refused.code == "not_found", refused.text
    never = {
        **arguments,
        **{
            name: ids.new_id(prefix)
            for name, prefix in (("project_id", ids.PROJECT), ("session_id", ids.SESSION))
            if name in arguments
        },
    }
    told = await bench.call(tool, never, scope=scope)
    hidden = refused.text
    for name in ("project_id", "session_id"):
        if name in arguments:
            hidden = hidden.replace(arguments[name], never[name])
    assert told.text == hidden
    assert bench.spawns == []
    assert bench.answers == []


@pytest.mark.parametrize(
    ("tool", "fields"),
    [
        each
        for each in BOUND
        if each[0]
        not in {
            "caller_tool_progress",
            "caller_tool_response",
            "container_refresh",
            "container_snapshot",
            "permission_response",
        }
    ],
)
async def test_the_own_project_is_there_for_a_bound_key(
    bench: Bench, tool: str, fields: str
) -> None:
    there = await world(bench)
    arguments = {name: there["arguments"][name] for name in fields.split()}
    result = await bench.call(tool, arguments, scope=f"project:{there['other'].id}")
    assert result.code in {None, "conflict"}, result.text


async def test_listings_show_a_bound_key_its_project_alone(bench: Bench) -> None:
    there = await world(bench)
    scope = f"project:{there['mine'].id}:ro"
    found = (await bench.call("project_list", {}, scope=scope)).structured
    assert [each["name"] for each in found["projects"]] == ["mine"]
    none = await bench.call("project_list", {"name_contains": "other"}, scope=scope)
    assert none.structured == {"projects": [], "next_cursor": None}
    some = await bench.call("project_list", {"name_contains": "MIN"}, scope=scope)
    assert len(some.structured["projects"]) == 1


async def test_cleaning_up_with_a_bound_key_touches_its_project_alone(bench: Bench) -> None:
    there = await world(bench)
    for project in (there["mine"], there["other"]):
        await bench.session(project, updated_at=1.0)
    scope = f"project:{there['mine'].id}"
    done = await bench.call("session_cleanup", {}, scope=scope)
    assert done.structured == {"deleted": 1}
    assert [project for project, _ in bench.purged] == [there["mine"].id]


@pytest.mark.parametrize(
    "arguments",
    [
        lambda session: ("session_message", {"session_id": session.id, "message": "x"}),
        lambda session: ("caller_tool_response", {"session_id": session.id, "request_id": "r"}),
        lambda session: (
            "permission_response",
            {"session_id": session.id, "request_id": "r", "decision": "allow"},
        ),
    ],
)
async def test_only_the_owner_converses_and_answers(bench: Bench, arguments: Any) -> None:
    there = await world(bench)
    bench.open_requests.add("r")
    tool, given = arguments(there["session"])
    stranger = await bench.call(tool, given, principal="mallory", scope="write")
    assert stranger.code == "not_found"
    assert bench.answers == []
    assert bench.spawns == []
    owner = await bench.call(tool, given, principal="alice")
    assert not owner.is_error


async def test_whoever_reaches_the_project_sees_and_ends(bench: Bench) -> None:
    there = await world(bench)
    session_id = there["session"].id
    for tool in ("session_get", "session_events", "session_interrupt", "session_end"):
        result = await bench.call(tool, {"session_id": session_id}, principal="mallory")
        assert not result.is_error, result.text


async def test_a_deleted_project_is_gone_for_every_tool(bench: Bench) -> None:
    project = await bench.project()
    await bench.do("project_delete", project_id=project.id)
    for tool, fields in BOUND:
        if fields.startswith("project_id"):
            extra = {
                "prompt": "p",
                "message": "m",
                "messages": ["m"],
                "command": "c",
                "workspace_id": ids.new_uuid(),
                "session_ids": [ids.new_id(ids.SESSION), ids.new_id(ids.SESSION)],
            }
            arguments = {"project_id": project.id} | {
                name: extra[name] for name in fields.split() if name in extra
            }
            assert (await bench.call(tool, arguments)).code == "not_found", tool


async def test_a_session_key_makes_no_tokens(bench: Bench) -> None:
    """They would outlive the session (keys for inner agents can only shrink)."""
    refused = await bench.call(
        "token_create", {"name": "a", "scope": "read"}, transport="socket", minted=True
    )
    assert refused.code == "forbidden"


async def test_a_token_for_a_project_that_is_not_there_is_refused(bench: Bench) -> None:
    project = ids.new_id(ids.PROJECT)
    result = await bench.call("token_create", {"name": "a", "scope": f"project:{project}"})
    assert result.text.startswith(f"project {project} not found")


# ---------------------------------------------------------------------- trees over two projects


class Tree:
    """root → below, in one project; root → hidden, in another one, → beyond, in the first."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def grow(self) -> Tree:
        bench = self.bench
        self.mine, self.other = await bench.project("mine"), await bench.project("other")
        self.root = await bench.session(self.mine, live=True)
        self.below = await bench.session(self.mine, live=True, parent=self.root)
        self.hidden = await bench.session(self.other, live=True, parent=self.root)
        self.beyond = await bench.session(self.mine, live=True, parent=self.hidden)
        for session in (self.root, self.hidden, self.below, self.hidden, self.beyond):
            secret = "SECRET " if session is self.hidden else ""
            await bench.write(session, text=f"{secret}of {session.id}")
        self.scope = f"project:{self.mine.id}"
        return self

    async def ask(self, tool: str, scope: str | None = None, **arguments: Any) -> dict[str, Any]:
        found = await self.bench.call(tool, arguments, scope=scope or self.scope)
        assert not found.is_error, found.text
        return found.structured

    def ended(self) -> list[str]:
        return [each.session_id for each in self.bench.asked if isinstance(each, EndSession)]


@pytest.fixture
async def tree(bench: Bench) -> Tree:
    return await Tree(bench).grow()


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("at_once", [1, 2, 100])
async def test_the_events_of_a_tree_are_those_that_a_key_reaches(
    tree: Tree, read_only: bool, at_once: int
) -> None:
    scope = tree.scope + (":ro" if read_only else "")
    seen: list[str] = []
    cursor, more = -1, True
    while more:
        page = await tree.ask(
            "session_events",
            scope,
            session_id=tree.root.id,
            include_children=True,
            since_index=cursor,
            max_events=at_once,
        )
        assert tree.hidden.id not in str(page)
        assert "SECRET" not in str(page)
        seen += [event["session_id"] for event in page["events"]]
        cursor, more = page["last_index"], page["more"]
    assert seen == [tree.root.id, tree.below.id, tree.beyond.id]
    whole = await tree.ask("session_events", "read", session_id=tree.root.id, include_children=True)
    assert len(whole["events"]) == 5


async def test_events_of_a_tree_that_rested_long_are_those_that_a_key_reaches(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = await tree.ask("session_events", session_id=tree.root.id, include_children=True)
    stranger = await tree.bench.session(tree.other, live=True)
    for _ in range(3):
        await tree.bench.write(stranger, text="of another tree")
        await tree.bench.write(tree.hidden, text="SECRET")
    await tree.bench.write(tree.beyond, text="late")
    monkeypatch.setattr(event_log, "WALK", 1)
    page = await tree.ask(
        "session_events",
        session_id=tree.root.id,
        include_children=True,
        since_index=begun["last_index"],
        max_events=2,
    )
    assert [event["text"] for event in page["events"]] == ["late"]


async def test_a_cut_log_out_of_reach_leaves_no_gap_in_a_tree(tree: Tree) -> None:
    await tree.bench.put(DeleteSessionEvents(tree.hidden.id, 0))
    asked = {"session_id": tree.root.id, "include_children": True}
    assert (await tree.ask("session_events", **asked))["truncated_before"] is None
    assert (await tree.ask("session_events", "read", **asked))["truncated_before"] is not None


async def test_neither_children_nor_parents_out_of_reach_are_named(tree: Tree) -> None:
    for scope, session, parent, children in [
        (tree.scope, tree.root, None, [tree.below.id]),
        (tree.scope, tree.below, tree.root.id, []),
        (tree.scope, tree.beyond, None, []),
        (f"project:{tree.other.id}:ro", tree.hidden, None, []),
        ("read", tree.root, None, [tree.below.id, tree.hidden.id]),
        ("read", tree.hidden, tree.root.id, [tree.beyond.id]),
    ]:
        listed = await tree.ask("session_list", scope, project_id=session.project_id)
        shown = {each["session_id"]: each for each in listed["sessions"]}[session.id]
        got = await tree.ask("session_get", scope, session_id=session.id)
        for each in (shown, got):
            assert each["parent_session_id"] == parent
            assert sorted(each["child_session_ids"]) == sorted(children)


async def test_ending_a_tree_ends_what_the_key_reaches(tree: Tree) -> None:
    done = await tree.ask("session_end", session_id=tree.root.id, tree=True)
    assert done["living_descendants"] == 0
    assert sorted(tree.ended()) == sorted([tree.root.id, tree.below.id, tree.beyond.id])
    await tree.ask("session_end", "write", session_id=tree.root.id, tree=True)
    assert tree.ended()[-1] == tree.hidden.id


async def test_living_descendants_are_those_that_the_key_reaches(tree: Tree) -> None:
    for scope, living in ((tree.scope, 2), ("write", 3)):
        done = await tree.ask("session_end", scope, session_id=tree.root.id)
        assert done["living_descendants"] == living
