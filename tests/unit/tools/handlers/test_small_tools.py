"""Projects, workspaces, limits, cleaning up, tokens, callers: each does what it says."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette import ids
from oubliette.actors.messages import (
    AnswerCallerTool,
    AnswerPermission,
    CreateProject,
    DeleteWorkspace,
    EndSession,
    ReportCallProgress,
)
from oubliette.records import Container, Limits, Token, Workspace
from oubliette.runtime.store import queries
from oubliette.runtime.store.operations import PutContainer, PutToken, PutWorkspace

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio


# ---------------------------------------------------------------------- projects


async def test_a_project_is_created_as_asked(bench: Bench) -> None:
    await bench.do(
        "project_create",
        name="p",
        description="d",
        remote_url="git@example.com:a/b.git",
        init_git=False,
        workspace_isolation=True,
        limits={"max_depth": 0, "max_cost_usd": 0.5},
        mcp_servers={"s": {"command": "x"}},
        idempotency_key="k",
    )
    (message,) = bench.asked
    assert isinstance(message, CreateProject)
    assert message.limits == Limits(max_depth=0, max_cost_usd=0.5)
    assert (message.principal, message.init_git, message.workspace_isolation) == (
        "alice",
        False,
        True,
    )
    assert message.mcp_servers == {"s": {"command": "x"}}
    assert message.idempotency is not None


@pytest.mark.parametrize(
    "url",
    ["https://e.com/a.git", "http://e.com/a", "ssh://g@e.com:22/a", "git://e.com/a", "g@e.com:a/b"],
)
async def test_usual_remotes_are_taken(bench: Bench, url: str) -> None:
    await bench.do("project_create", name="p", remote_url=url)


async def test_servers_of_a_project_are_bounded(bench: Bench) -> None:
    text = await bench.error("project_create", name="p", mcp_servers={"s": {"env": "x" * 70_000}})
    assert text == "mcp_servers: more than 65536 bytes"


async def test_a_type_with_an_image_needs_a_runtime_with_images(bench: Bench) -> None:
    text = await bench.error("project_create", name="p", container_type="dev")
    assert text.startswith("container_type: there is no 'dev' here; choose one of: base")
    assert "the runtime process has no images: it needs docker or podman" in text
    text = await bench.error("project_create", name="p", container_type="nope")
    assert "images" not in text


async def test_projects_are_listed_in_pages(bench: Bench) -> None:
    made = [(await bench.project(f"p{number}")).id for number in range(5)]
    seen, cursor = [], None
    while True:
        page = await bench.do("project_list", limit=2, cursor=cursor)
        seen += [each["id"] for each in page["projects"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == made
    found = await bench.do("project_list", name_contains="P3")
    assert [each["name"] for each in found["projects"]] == ["p3"]


async def test_a_project_shows_its_containers(bench: Bench) -> None:
    project = await bench.project()
    container = Container(
        id=ids.new_id(ids.CONTAINER),
        project_id=project.id,
        workspace_id=None,
        container_type="base",
        runtime="process",
        state="running",
        created_at=1.0,
        spec_hash="",
        host_key=b"k" * 32,
        folder="/x",
    )
    await bench.put(PutContainer(container))
    shown = await bench.do("project_get", project_id=project.id)
    assert shown["containers"] == [
        {"container_id": container.id, "workspace_id": None, "state": "running"}
    ]
    assert shown == (await bench.do("project_list"))["projects"][0]


async def test_a_project_with_live_sessions_is_not_deleted(bench: Bench) -> None:
    project = await bench.project()
    await bench.session(project, live=True)
    text = await bench.error("project_delete", project_id=project.id)
    assert "session_end" in text
    assert not (await bench.do("project_get", project_id=project.id)) == {}


async def test_options_say_what_may_be_chosen(bench: Bench) -> None:
    options = await bench.do("project_options")
    assert (options["agents"], options["runtimes"]) == (["scripted"], ["process"])
    assert options["limits"]["max_depth"] == 3
    assert "project:<id>:ro" in options["scopes"]


# ---------------------------------------------------------------------- workspaces


async def test_a_workspace_of_another_project_is_not_found(bench: Bench) -> None:
    mine, other = await bench.project("a"), await bench.project("b")
    text = await bench.error(
        "workspace_delete", project_id=mine.id, workspace_id=other.default_workspace_id
    )
    assert "not found" in text
    assert not [each for each in bench.asked if isinstance(each, DeleteWorkspace)]


async def test_workspaces_are_listed_and_deleted(bench: Bench) -> None:
    project = await bench.project()
    made = Workspace(
        id=ids.new_uuid(), project_id=project.id, created_at=time.time() + 9, external_id="u"
    )
    await bench.put(PutWorkspace(made))
    listed = (await bench.do("workspace_list", project_id=project.id))["workspaces"]
    assert [(each["is_default"], each["external_id"]) for each in listed] == [
        (True, None),
        (False, "u"),
    ]
    first = await bench.do("workspace_list", project_id=project.id, limit=1)
    assert (first["workspaces"], first["next_cursor"]) == (listed[:1], listed[0]["id"])
    rest = await bench.do("workspace_list", project_id=project.id, cursor=first["next_cursor"])
    assert (rest["workspaces"], rest["next_cursor"]) == (listed[1:], None)
    done = await bench.do("workspace_delete", project_id=project.id, workspace_id=made.id)
    assert done == {"workspace_id": made.id, "deleted": True}


# ---------------------------------------------------------------------- limits


async def test_limits_of_a_project_are_what_its_next_tree_gets(bench: Bench) -> None:
    project = await bench.do("project_create", name="p", limits={"max_depth": 7})
    shown = await bench.do("config_limits", project_id=project["id"])
    assert shown["limits"]["max_depth"] == {
        "value": 7,
        "source": "project",
        "used": None,
        "left": None,
    }
    assert shown["limits"]["max_agents"]["source"] == "configuration"
    assert (shown["depth"], shown["remaining_depth"], shown["exploration_id"]) == (None, 7, None)


async def test_limits_of_a_session_count_its_whole_tree(bench: Bench) -> None:
    project = await bench.project()
    root = await bench.session(project, live=True, cost_usd=1.0)
    child = await bench.session(project, parent=root, cost_usd=2.5)
    await bench.session(project, live=True)  # another tree
    shown = await bench.do("config_limits", session_id=child.id)
    limits = shown["limits"]
    assert (shown["depth"], shown["remaining_depth"]) == (1, 2)
    assert limits["max_agents"] == {
        "value": 50,
        "source": "configuration",
        "used": 2,
        "left": 48,
    }
    assert limits["max_agents_at_once"]["used"] == 1
    assert (limits["max_cost_usd"]["used"], limits["max_cost_usd"]["left"]) == (3.5, 6.5)
    assert limits["max_live_sessions"]["used"] == 2
    assert limits["max_wall_seconds"]["used"] >= 0


async def test_limits_need_something_to_be_of(bench: Bench) -> None:
    assert (await bench.error("config_limits")).startswith("project_id: is required")
    project, other = await bench.project("a"), await bench.project("b")
    session = await bench.session(project)
    text = await bench.error("config_limits", session_id=session.id, project_id=other.id)
    assert text.startswith("project_id: the session belongs to another project")


# ---------------------------------------------------------------------- ending, cleaning up


async def test_ending_a_tree_ends_the_root_first(bench: Bench) -> None:
    project = await bench.project()
    root = await bench.session(project, live=True)
    child = await bench.session(project, live=True, parent=root)
    rested = await bench.session(project, parent=child)
    done = await bench.do("session_end", session_id=root.id, tree=True)
    assert done == {"session_id": root.id, "status": "completed", "living_descendants": 0}
    ended = [each.session_id for each in bench.asked if isinstance(each, EndSession)]
    assert ended == [root.id, child.id, rested.id]


async def test_ending_one_leaves_its_children(bench: Bench) -> None:
    project = await bench.project()
    root = await bench.session(project, live=True)
    await bench.session(project, live=True, parent=root)
    await bench.do("session_end", session_id=root.id)
    assert len(await bench.reader.live_sessions()) == 1


async def test_ending_what_was_ended_is_no_error(bench: Bench) -> None:
    session = await bench.session(await bench.project(), ended_by="session_end")
    for _ in range(2):
        done = await bench.do("session_end", session_id=session.id)
        assert done["status"] == "completed"
    assert not [each for each in bench.asked if isinstance(each, EndSession)]


async def test_cleaning_up_deletes_old_sessions_with_their_logs_and_files(bench: Bench) -> None:
    project = await bench.project()
    now = time.time()
    old = await bench.session(project, updated_at=now - 25 * 3600)
    young = await bench.session(project, updated_at=now - 23 * 3600)
    live = await bench.session(project, live=True, updated_at=now - 99 * 3600)
    await bench.write(old, text="x")
    assert await bench.do("session_cleanup") == {"deleted": 1}
    assert bench.purged == [(project.id, old.id)]
    assert await bench.reader.session(old.id) is None
    assert await bench.reader.events(old.id) == []
    for kept in (young, live):
        assert await bench.reader.session(kept.id) is not None
    assert await bench.do("session_cleanup", max_age_hours=0) == {"deleted": 1}


async def test_a_session_that_is_being_resumed_is_not_cleaned_up(bench: Bench) -> None:
    session = await bench.session(await bench.project(), updated_at=1.0)
    bench.run(session)
    assert await bench.do("session_cleanup") == {"deleted": 0}


async def test_many_sessions_are_cleaned_up_in_one_call(bench: Bench) -> None:
    project = await bench.project()
    from oubliette.runtime.store.operations import PutSession

    one = await bench.session(project, updated_at=1.0)

    copies = [
        PutSession(msgspec.structs.replace(one, id=ids.new_id(ids.SESSION))) for _ in range(1100)
    ]
    await bench.put(*copies)
    assert await bench.do("session_cleanup") == {"deleted": 1101}


# ---------------------------------------------------------------------- tokens


async def test_a_token_is_shown_once_and_listed_without_its_secret(bench: Bench) -> None:
    made = await bench.do("token_create", name="n", scope="read", expires_in_seconds=60)
    assert bench.keys.verify(made["token"], "http").id == made["token_id"]
    result = await bench.call("token_list", {})
    secret = made["token"].partition(made["token_id"].removeprefix("tok_"))[2]
    assert len(secret) > 40
    assert secret.removeprefix("_") not in result.text
    (listed,) = result.structured["tokens"]
    assert (listed["name"], listed["scope"], listed["principal"]) == (
        "n",
        "read",
        made["principal"],
    )
    assert listed["expires_at"] == made["expires_at"]


async def test_many_tokens_are_listed_in_pages_that_clients_take(bench: Bench) -> None:
    tokens = [
        Token(
            id=f"tok_{number:026}",
            digest=bytes(32),
            name="n" * 60,
            scope="read",
            principal=ids.new_id(ids.PRINCIPAL),
            created_at=1.0,
        )
        for number in range(2500)
    ]
    await bench.put(*map(PutToken, tokens))
    await bench.keys.load()
    seen: list[str] = []
    cursor = None
    while True:
        result = await bench.call("token_list", {"cursor": cursor})
        page = result.structured
        wire = msgspec.json.encode({"structuredContent": page, "content": [{"text": result.text}]})
        assert len(wire) < 1024 * 1024
        seen += [token["token_id"] for token in page["tokens"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [f"tok_{number:026}" for number in range(2500)]


async def test_of_many_children_the_newest_are_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries.child_ids, "__defaults__", (2,))
    project = await bench.project()
    parent = await bench.session(project)
    children = [(await bench.session(project, parent=parent)).id for _ in range(3)]
    shown = await bench.do("session_get", session_id=parent.id)
    assert shown["child_session_ids"] == sorted(children)[1:]


async def test_a_token_may_replace_another_of_its_owner(bench: Bench) -> None:
    first = await bench.do("token_create", name="n", scope="read", principal="team@example.com")
    second = await bench.do("token_create", name="n", scope="read", principal="team@example.com")
    assert first["principal"] == second["principal"] == "team@example.com"
    assert await bench.do("token_revoke", token_id=first["token_id"]) == {
        "token_id": first["token_id"],
        "revoked": True,
    }
    again = await bench.do("token_revoke", token_id=first["token_id"])
    assert again["revoked"] is False


# ---------------------------------------------------------------------- callers


async def test_an_answer_reaches_its_session(bench: Bench) -> None:
    session = await bench.session(await bench.project(), live=True)
    bench.open_requests.update({"a", "b"})
    given: dict[str, Any] = {
        "session_id": session.id,
        "request_id": "a",
        "result": {"x": [1, None]},
    }
    assert await bench.do("caller_tool_response", **given) == {"accepted": True}
    assert bench.answers == [
        AnswerCallerTool(principal="alice", request_id="a", result={"x": [1, None]})
    ]
    await bench.do("caller_tool_response", session_id=session.id, request_id="b", error="no")
    assert bench.answers[-1].error == "no"


async def test_progress_reaches_its_session(bench: Bench) -> None:
    session = await bench.session(await bench.project(), live=True)
    bench.open_requests.add("a")
    given = {"session_id": session.id, "request_id": "a", "message": "half done"}
    assert await bench.do("caller_tool_progress", **given) == {"accepted": True}
    assert bench.answers == [
        ReportCallProgress(principal="alice", request_id="a", message="half done")
    ]


async def test_progress_of_nothing_open_is_answered_as_an_answer_is(bench: Bench) -> None:
    session = await bench.session(await bench.project(), live=True)
    for session_id in (session.id, ids.new_id(ids.SESSION)):
        text = await bench.error(
            "caller_tool_progress", session_id=session_id, request_id="x", message="m"
        )
        assert text == "request not found or already resolved"


@pytest.mark.parametrize("message", ["", "x" * 1001])
async def test_progress_is_a_sentence_of_at_most_1000_characters(
    bench: Bench, message: str
) -> None:
    session = await bench.session(await bench.project(), live=True)
    text = await bench.error(
        "caller_tool_progress", session_id=session.id, request_id="a", message=message
    )
    assert "message" in text


async def test_an_answer_to_nothing_open_is_told_so(bench: Bench) -> None:
    """Unknown, settled, or of another session."""
    session = await bench.session(await bench.project(), live=True)
    rested = await bench.session(await bench.project("q"))
    for session_id in (session.id, rested.id, ids.new_id(ids.SESSION)):
        text = await bench.error("caller_tool_response", session_id=session_id, request_id="x")
        assert text == "request not found or already resolved"


async def test_a_decision_reaches_its_session(bench: Bench) -> None:
    session = await bench.session(await bench.project(), live=True)
    bench.open_requests.update({"a", "b"})
    given = {"session_id": session.id, "request_id": "a", "decision": "deny"}
    assert await bench.do("permission_response", **given) == {"accepted": True}
    again = {**given, "request_id": "b", "decision": "allow", "remember": "session"}
    await bench.do("permission_response", **again)
    assert bench.answers == [
        AnswerPermission(principal="alice", request_id="a", decision="deny"),
        AnswerPermission(principal="alice", request_id="b", decision="allow", remember=True),
    ]


async def test_a_decision_belongs_to_the_owner_of_the_root(bench: Bench) -> None:
    """What an agent starts with a key of its own is asked for where its tree began."""
    project = await bench.project()
    root = await bench.session(project, live=True)
    child = await bench.session(
        project, live=True, principal=f"session:{root.id}", root_session_id=root.id
    )
    bench.open_requests.add("a")
    given = {"session_id": child.id, "request_id": "a", "decision": "allow"}
    own = await bench.call(
        "permission_response", given, principal=f"session:{root.id}", scope="write"
    )
    assert own.text == "request not found or already resolved"
    assert bench.answers == []
    assert await bench.do("permission_response", **given) == {"accepted": True}


async def test_a_decision_on_nothing_open_is_told_so(bench: Bench) -> None:
    """Unknown, settled, or of another session."""
    session = await bench.session(await bench.project(), live=True)
    rested = await bench.session(await bench.project("q"))
    for session_id in (session.id, rested.id, ids.new_id(ids.SESSION)):
        text = await bench.error(
            "permission_response", session_id=session_id, request_id="x", decision="allow"
        )
        assert text == "request not found or already resolved"


async def test_a_long_poll_gets_what_there_is_and_where_to_go_on(bench: Bench) -> None:
    session = await bench.session(await bench.project(), live=True, caller_id="ant")
    async with asyncio.timeout(5):
        start = await bench.do("caller_listen", caller_id="ant", max_seconds=0)
        assert (start["events"], start["ended"]) == ([], None)
        await bench.write(session, text="one")
        await bench.write(session, text="two")
        page = await bench.do("caller_listen", caller_id="ant", after=start["next"])
        assert [event["text"] for event in page["events"]] == ["one", "two"]
        assert page["next"] == page["events"][-1]["seq"]
        other = await bench.call(
            "caller_listen", {"caller_id": "ant", "after": 0, "max_seconds": 0}, principal="mallory"
        )
        assert other.structured["events"] == []


async def test_a_long_poll_ends_with_the_first_event(bench: Bench) -> None:
    session = await bench.session(await bench.project(), live=True, caller_id="ant")
    async with asyncio.timeout(5):
        start = await bench.do("caller_listen", caller_id="ant", max_seconds=0)
        waiting = asyncio.create_task(
            bench.do("caller_listen", caller_id="ant", after=start["next"], max_seconds=60)
        )
        await bench.write(session, text="news")
        assert [event["text"] for event in (await waiting)["events"]] == ["news"]


async def test_lent_tools_are_checked_when_a_caller_listens(bench: Bench) -> None:
    text = await bench.error(
        "caller_listen", caller_id="ant", caller_tools=[{"name": "a b"}], max_seconds=0
    )
    assert text.startswith("caller_tools[0].name: 'a b'")
