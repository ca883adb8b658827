"""Who may answer what an agent asks permission for, and what each key sees of the requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from oubliette.records import Event, PermissionRequest, Project, Session
from oubliette.runtime.store.operations import AppendEvents, PutPermission, PutProject
from oubliette.tools.handlers import permissions

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio

CLOSED = "request not found or already resolved"


class Asked(NamedTuple):
    project: Project
    root: Session
    child: Session
    """Asks for a permission; its root is alice's."""


async def ask(bench: Bench, session: Session, request_id: str, **changes: Any) -> None:
    data = {
        "request_id": request_id,
        "asks_for": "shell",
        "text": "may I?",
        "tool_call": {"title": "bash"},
        "ancestry": [session.root_session_id, session.id],
    } | changes.pop("data", {})
    event = Event(session_id=session.id, index=-1, ts=1.0, type="permission_request", data=data)
    ((stored,),) = await bench.put(AppendEvents((event,)))
    fields: dict[str, Any] = {
        "principal": "alice",
        "caller_id": None,
        "agent_request_id": "7",
        "asks_for": "shell",
        "turn": 1,
        "created_at": 1.0,
        "deadline": 61.0,
        "event_index": stored.index,
    }
    request = PermissionRequest(id=request_id, session_id=session.id, **fields | changes)
    await bench.put(PutPermission(request))


@pytest.fixture
async def asked(bench: Bench) -> Asked:
    project = await bench.project("shop")
    root = await bench.session(project, live=True)
    child = await bench.session(project, live=True, parent=root, principal=f"session:{root.id}")
    await ask(bench, child, "r1")
    bench.open_requests.add("r1")
    return Asked(project, root, child)


async def share(bench: Bench, project: Project) -> None:
    """Let the team answer; bench's stand-in for projects changes none."""
    await bench.put(PutProject(msgspec.structs.replace(project, answers="team")))


async def answer(bench: Bench, asked: Asked, **caller: Any) -> bool:
    given = {"session_id": asked.child.id, "request_id": "r1", "decision": "allow"}
    listed = await bench.call("permission_list", **caller)
    done = await bench.call("permission_response", given, **caller)
    if done.is_error:
        assert done.text.startswith((CLOSED, "tool not allowed for this token scope"))
        assert bench.answers == []
    else:
        assert [each.principal for each in bench.answers] == [caller["principal"]]
    seen = [each["may_answer"] for each in listed.structured["permissions"]]
    assert seen == ([] if caller["scope"] == OTHER else [not done.is_error])
    return not done.is_error


OTHER = "project:proj_" + "0" * 26


@pytest.mark.parametrize(
    ("caller", "owner", "team"),
    [
        ({"principal": "alice", "scope": "write"}, True, True),
        ({"principal": "alice", "scope": "read"}, False, False),
        ({"principal": "alice", "scope": OTHER}, False, False),
        ({"principal": "operator", "scope": "write"}, True, True),
        ({"principal": "operator", "scope": "admin", "transport": "control"}, True, True),
        ({"principal": "operator", "scope": OTHER}, False, False),
        ({"principal": "bob", "scope": "admin"}, True, True),
        ({"principal": "bob", "scope": "write"}, False, True),
        ({"principal": "bob", "scope": "read"}, False, False),
        ({"principal": "bob", "scope": OTHER}, False, False),
        ({"principal": "alice", "scope": "write", "minted": True}, False, False),
        ({"principal": "session:x", "scope": "admin", "minted": True}, False, False),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
async def test_those_answer_who_are_trusted_with_the_tree_and_with_team_all_who_write(
    bench: Bench, asked: Asked, caller: dict[str, Any], owner: bool, team: bool
) -> None:
    assert await answer(bench, asked, **caller) is owner
    bench.answers.clear()
    bench.open_requests.add("r1")
    await share(bench, asked.project)
    assert await answer(bench, asked, **caller) is team


@pytest.mark.parametrize(
    ("caller", "may"),
    [
        ({"principal": "alice", "scope": "write"}, True),
        ({"principal": "operator", "scope": "write"}, True),
        ({"principal": "bob", "scope": "admin"}, True),
        ({"principal": "bob", "scope": "write"}, False),
        ({"principal": "alice", "scope": "write", "minted": True}, False),
        ({"principal": "alice", "scope": "admin", "session_id": "s", "transport": "socket"}, False),
    ],
)
async def test_no_key_lets_itself_in_by_the_setting_of_a_project(
    bench: Bench, asked: Asked, caller: dict[str, Any], may: bool
) -> None:
    given = {"project_id": asked.project.id, "answers": "team"}
    done = await bench.call("project_update", given, **caller)
    assert (done.code == "forbidden") is not may, done.text
    if not may:
        assert done.text.startswith("answers: only the principal that made the project")


async def test_an_agent_makes_no_project_in_which_the_team_answers(bench: Bench) -> None:
    given = {"name": "p", "answers": "team"}
    refused = await bench.call("project_create", given, scope="write", minted=True)
    assert refused.code == "forbidden"
    assert not (await bench.call("project_create", given, scope="write")).is_error


async def test_an_update_of_nothing_is_refused(bench: Bench, asked: Asked) -> None:
    text = await bench.error("project_update", project_id=asked.project.id)
    assert text == "project_update: give allow_push or answers"


# ---------------------------------------------------------------------- what is listed


async def test_open_requests_are_listed_with_what_a_person_needs_to_decide(
    bench: Bench, asked: Asked
) -> None:
    await ask(bench, asked.child, "r0", decision="deny")
    await ask(bench, asked.root, "r2", data={"tool_call": {"x": "y" * permissions.MAX_TOOL_CALL}})
    found = await bench.do("permission_list")
    first, second = found["permissions"]
    assert first == {
        "request_id": "r1",
        "session_id": asked.child.id,
        "project_id": asked.project.id,
        "index": 0,
        "asks_for": "shell",
        "text": "may I?",
        "tool_call": {"title": "bash"},
        "created_at": 1.0,
        "deadline": 61.0,
        "ancestry": [asked.root.id, asked.child.id],
        "may_answer": True,
    }
    assert (second["request_id"], second["tool_call"]) == ("r2", None)
    assert found["more"] is False
    oldest = await bench.do("permission_list", limit=1)
    assert ([each["request_id"] for each in oldest["permissions"]], oldest["more"]) == (
        ["r1"],
        True,
    )


async def test_a_key_of_one_project_sees_nothing_of_another(bench: Bench, asked: Asked) -> None:
    """Neither its requests, nor the sessions above one of its own."""
    other = await bench.project("other")
    below = await bench.session(other, live=True, parent=asked.root)
    await ask(bench, below, "r2")
    reader = f"project:{other.id}:ro"
    (seen,) = (await bench.call("permission_list", scope=reader)).structured["permissions"]
    assert (seen["request_id"], seen["ancestry"]) == ("r2", [below.id])
    assert seen["may_answer"] is False
    assert "alice" not in str(seen)
    hidden = await bench.call("permission_list", {"project_id": asked.project.id}, scope=reader)
    assert hidden.code == "not_found"
    (wide,) = (await bench.do("permission_list", project_id=other.id))["permissions"]
    assert wide["ancestry"] == [asked.root.id, below.id]


async def test_names_of_principals_are_not_shown_to_agents_and_those_who_only_read(
    bench: Bench, asked: Asked
) -> None:
    await bench.write(asked.child, "permission_settled", request_id="r1", by="alice")
    agent = {"scope": "write", "minted": True}
    callers = ({"scope": "read"}, None), ({"scope": "write"}, "alice"), (agent, None)
    for caller, shown in callers:
        events = await bench.call("session_events", {"session_id": asked.child.id}, **caller)
        settled = events.structured["events"][-1]
        assert (settled["request_id"], settled.get("by")) == ("r1", shown)
        piece = await bench.call(
            "event_read", {"session_id": asked.child.id, "index": settled["index"]}, **caller
        )
        assert ("alice" in piece.structured["data"]) is (shown is not None)
