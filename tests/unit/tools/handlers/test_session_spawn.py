"""What session_spawn and session_message hand on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oubliette.actors.caller.messages import OpenListener
from oubliette.actors.messages import SharedTree
from oubliette.errors import Unauthenticated
from oubliette.records import CallerTool, Limits
from oubliette.tools.registry import call

if TYPE_CHECKING:
    from oubliette.actors.messages import SpawnSession
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio

TOOL = {"name": "look", "description": "d", "inputSchema": {"type": "object"}, "durable": True}
LENT = CallerTool(name="look", description="d", input_schema={"type": "object"}, durable=True)


async def spawn(bench: Bench, /, **arguments: Any) -> SpawnSession:
    project = (await bench.reader.projects_with_containers())[0].records
    project_id = project[0].id if project else (await bench.project()).id
    await bench.do("session_spawn", project_id=project_id, prompt="p", **arguments)
    return bench.spawns[-1]


async def test_settings_are_handed_on_as_they_are(bench: Bench) -> None:
    given = {
        "workspace_id": "6a7d1a52-92c2-4f9e-8a53-0d7dbbd0a3f1",
        "create_workspace": True,
        "new_session": True,
        "external_id": "u-1",
        "source": "web",
        "agent": "scripted",
        "model": "m",
        "autonomy": "high",
        "api_key": "own",
    }
    message = await spawn(bench, **given)
    assert {name: getattr(message, name) for name in given} == given
    assert (message.principal, message.prompt, message.parent_session_id) == ("alice", "p", None)


async def test_a_tree_is_handed_on_with_its_limits(bench: Bench) -> None:
    message = await spawn(bench, tree={"id": "t", "limits": {"max_agents": 3}})
    assert message.tree == SharedTree(id="t", limits=Limits(max_agents=3))
    assert (await spawn(bench, tree={"id": "t"})).tree == SharedTree(id="t")
    assert (await spawn(bench)).tree is None


async def test_a_session_that_has_its_tree_joins_no_other(bench: Bench) -> None:
    session = await bench.session(await bench.project())
    given: dict[str, Any] = {"session_id": session.id, "message": "m", "tree": {"id": "t"}}
    text = await bench.error("session_message", **given)
    assert "tree: the session has its tree already" in text


@pytest.mark.parametrize("tree_id", ["", "x" * 129])
async def test_the_id_of_a_tree_has_1_to_128_characters(bench: Bench, tree_id: str) -> None:
    project = await bench.project()
    text = await bench.error(
        "session_spawn", project_id=project.id, prompt="p", tree={"id": tree_id}
    )
    assert "tree.id" in text


async def test_the_context_wins_over_the_top_level(bench: Bench) -> None:
    message = await spawn(
        bench,
        caller_id="outer",
        caller_tools=[],
        context={"caller_id": "inner", "caller_tools": [TOOL]},
    )
    assert (message.caller_id, message.caller_tools) == ("inner", (LENT,))


async def test_the_top_level_does_as_well(bench: Bench) -> None:
    message = await spawn(bench, caller_id="ant", caller_tools=[TOOL])
    assert (message.caller_id, message.caller_tools) == ("ant", (LENT,))


async def test_each_half_may_come_from_another_place(bench: Bench) -> None:
    message = await spawn(bench, caller_id="ant", context={"caller_tools": [TOOL]})
    assert (message.caller_id, message.caller_tools) == ("ant", (LENT,))


async def test_tools_that_are_not_named_stay_as_they_were(bench: Bench) -> None:
    assert (await spawn(bench, caller_id="ant")).caller_tools is None
    assert (await spawn(bench, context={})).caller_id is None


async def test_no_tools_are_another_thing_than_none_named(bench: Bench) -> None:
    assert (await spawn(bench, caller_id="ant", caller_tools=[])).caller_tools == ()


async def test_a_caller_lends_what_it_gave_when_it_began_to_listen(bench: Bench) -> None:
    caller = await bench.services.caller_ref("alice", "ant")
    await caller.ask(OpenListener(listener_id="l", tools=(LENT,)))
    assert (await spawn(bench, caller_id="ant")).caller_tools == (LENT,)
    assert (await spawn(bench, caller_id="ant", caller_tools=[])).caller_tools == ()
    assert (await spawn(bench, caller_id="bee")).caller_tools is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"caller_tools": [TOOL]}, "caller_id: is required with caller_tools"),
        ({"context": {"caller_tools": [TOOL]}}, "caller_id: is required with context.caller_tools"),
        ({"context": {"caller_id": "oubliette"}}, "context.caller_id: names that begin with"),
        ({"context": {"caller_id": "a b"}}, "context.caller_id: 'a b' must be 1 to 64 of"),
        (
            {"context": {"caller_id": "ant", "caller_tools": [{"name": "a b"}]}},
            "context.caller_tools[0].name: 'a b' must be",
        ),
        (
            {"caller_id": "ant", "caller_tools": [{"name": "a", "inputSchema": {"$ref": "x"}}]},
            "caller_tools[0].inputSchema: $ref 'x' refers to another document",
        ),
        ({"agent": "droid"}, "agent: there is no 'droid' here; choose one of: scripted"),
        ({"api_key_project": "*"}, "api_key_project: needs api_key_scope as well"),
        ({"api_key_ttl_seconds": 5}, "api_key_ttl_seconds: needs api_key_scope as well"),
        ({"api_key_scope": "read", "api_key": "k"}, "api_key: give either a key of your own or"),
        ({"api_key_scope": "all"}, "api_key_scope: 'all' is not one of: admin"),
        ({"api_key_scope": "admin"}, "api_key_scope: admin cannot be bound to a project"),
        ({"api_key": "a\nb"}, "api_key: must not contain control characters"),
    ],
)
async def test_what_cannot_be_spawned_is_refused_before_anything_happens(
    bench: Bench, arguments: dict[str, Any], sentence: str
) -> None:
    project = await bench.project()
    text = await bench.error("session_spawn", project_id=project.id, prompt="p", **arguments)
    assert text.startswith(sentence)
    assert bench.spawns == []
    assert await bench.reader.tokens() == []


async def test_a_message_needs_somebody_to_go_to(bench: Bench) -> None:
    assert (await bench.error("session_message", message="m")).startswith("session_id: is required")


async def test_a_message_to_a_session_goes_to_its_project(bench: Bench) -> None:
    project, other = await bench.project("a"), await bench.project("b")
    session = await bench.session(project, live=True)
    done = await bench.do("session_message", session_id=session.id, message="m")
    assert (done["session_id"], done["spawned"]) == (session.id, False)
    assert (bench.spawns[-1].session_id, bench.spawns[-1].prompt) == (session.id, "m")
    await bench.do("session_message", session_id=session.id, project_id=project.id, message="m")
    text = await bench.error(
        "session_message", session_id=session.id, project_id=other.id, message="m"
    )
    assert text == "project_id: the session belongs to another project; leave it out"


# ---------------------------------------------------------------------- keys


async def test_a_spawn_mints_a_key_that_works_on_that_link_alone(bench: Bench) -> None:
    message = await spawn(bench, api_key_scope="read")
    (session,) = await bench.reader.live_sessions()
    assert message.api_key is not None
    assert session.minted_token_id == message.minted_token_id
    token = bench.keys.verify(message.api_key, "socket", session.id)
    assert token.scope == f"project:{session.project_id}:ro"
    assert token.principal == f"session:{session.id}"
    with pytest.raises(Unauthenticated):
        bench.keys.verify(message.api_key, "http")


async def test_a_key_that_no_session_took_is_revoked(bench: Bench) -> None:
    """A live session keeps the key that its agent has: it cannot be given another one."""
    project = await bench.project()
    session = await bench.session(project, live=True)
    await bench.do("session_message", session_id=session.id, message="m", api_key_scope="read")
    (token,) = await bench.reader.tokens()
    assert token.revoked_at is not None


async def test_a_spawn_that_fails_leaves_no_key_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = await bench.project()
    ref = await bench.services.project_ref(project.id)

    async def refuse(*_: Any, **__: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(type(ref), "ask", refuse)
    result = await bench.call(
        "session_spawn", {"project_id": project.id, "prompt": "p", "api_key_scope": "read"}
    )
    monkeypatch.undo()
    assert result.is_error
    assert [token for token in await bench.reader.tokens() if token.revoked_at is None] == []


async def test_a_bound_key_mints_no_unbound_one(bench: Bench) -> None:
    project = await bench.project()
    arguments = {"project_id": project.id, "prompt": "p", "api_key_scope": "read"}
    scope = f"project:{project.id}"
    wide = await bench.call("session_spawn", {**arguments, "api_key_project": "*"}, scope=scope)
    assert wide.code == "forbidden"
    narrow = await bench.call("session_spawn", arguments, scope=scope)
    assert not narrow.is_error


async def test_what_an_agent_spawns_counts_in_its_own_tree(bench: Bench) -> None:
    project = await bench.project()
    parent = await bench.session(project, live=True)
    result = await bench.call(
        "session_spawn",
        {"project_id": project.id, "prompt": "p"},
        transport="socket",
        session_id=parent.id,
        principal=f"session:{parent.id}",
    )
    assert not result.is_error
    assert bench.spawns[-1].parent_session_id == parent.id


# ---------------------------------------------------------------------- idempotency


async def test_the_same_request_claims_the_same_digest_in_any_words(bench: Bench) -> None:
    first = await spawn(bench, idempotency_key="k")
    again = await spawn(bench, idempotency_key="k", new_session=False, model=None)
    other = await spawn(bench, idempotency_key="k", model="m")
    assert first.idempotency is not None
    assert first.idempotency.tool == "session_spawn"
    assert first.idempotency == again.idempotency
    assert other.idempotency is not None
    assert other.idempotency.digest != first.idempotency.digest
    assert (await spawn(bench)).idempotency is None


@pytest.mark.parametrize("end", ["revoked", "expired"])
@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("session_spawn", {"prompt": "p"}),
        ("session_spawn", {"prompt": "p", "api_key_scope": "write"}),
        ("session_map", {"messages": ["a", "b"]}),
    ],
)
async def test_a_key_that_has_ended_since_its_call_began_starts_no_agent(
    bench: Bench, tool: str, given: dict[str, Any], end: str
) -> None:
    """Such a call may last for hours: each of its sessions is started when there is room."""
    project = await bench.project()
    _, context = await bench.key("write", expires_in=-1.0 if end == "expired" else None)
    if end == "revoked":
        await bench.keys.revoke(context.token_id)
    arguments = {"project_id": project.id, **given}
    result = await call(bench.services, context, tool, arguments)
    assert "invalid or expired API key" in result.text
    assert bench.spawns == []
    assert [each.principal for each in await bench.reader.tokens()] == [context.principal]
