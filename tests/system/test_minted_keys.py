"""Oubliette's own tools in an agent's hands."""

from __future__ import annotations

import json

import pytest

from oubliette.runtime.containers.process import procfs
from tests.callers import HttpCaller, HttpError, ToolFailed
from tests.system.wire_client import WireClient

pytestmark = pytest.mark.anyio

READ = {
    "project_list",
    "project_get",
    "session_list",
    "session_get",
    "session_events",
    "event_list",
    "event_read",
    "workspace_list",
    "config_limits",
    "file_list",
    "file_read",
    "permission_list",
    "port_list",
    "repository_branches",
    "session_compare",
    "session_diff",
    "session_export",
    "session_log",
    "tree_get",
    "tree_list",
    "usage_report",
}


@pytest.fixture
async def caller(site):
    async with site.caller("http-auto") as caller:
        yield caller


async def key_of(site, agent):
    """The key in the environment of a session's agent, as its processes see it."""
    for process in site.server.agents(agent.session_id):
        key = procfs.environment(process.pid).get("OUBLIETTE_API_KEY")
        if key:
            return key
    raise AssertionError("no key in the agent's environment")


async def test_a_read_key_shows_the_reading_tools_and_no_others(site, caller):
    """Tool filtering by scope; discovery by oubliette-client at its start."""
    agent = await site.spawn(caller, "tools", api_key_scope="read")
    names = await agent.outcome()
    assert {name for name in names if name.startswith("oubliette_")} == {
        f"oubliette_{name}" for name in READ
    }


async def test_a_read_key_reads(site, caller):
    """A read call."""
    agent = await site.spawn(caller, "call oubliette_project_list {}", api_key_scope="read")
    outcome = await agent.outcome()
    assert not outcome["is_error"]
    assert [each["id"] for each in outcome["structured"]["projects"]] == [site.project["id"]]
    asked = json.dumps({"session_id": agent.session_id})
    outcome = await agent.ask(f"call oubliette_session_get {asked}")
    assert outcome["structured"]["session_id"] == agent.session_id
    outcome = await agent.ask("call oubliette_config_limits {}")  # of its own tree
    assert outcome["structured"]["depth"] == 0


async def test_a_read_key_is_refused_a_write(site, caller):
    """A refused write: `insufficient permissions`."""
    agent = await site.spawn(
        caller,
        'call oubliette_project_create {"name": "not for me"}\n'
        "call oubliette_no_such_tool {}\n"
        "call oubliette_caller_tool_response {}",
        api_key_scope="read",
    )
    for text in await agent.turn():
        outcome = json.loads(text)
        assert outcome["is_error"]
        assert "insufficient permissions" in outcome["text"]
    listed = await site.eyes.call("project_list", name_contains="not for me")
    assert listed["projects"] == []


async def test_a_write_key_writes_in_its_project_alone(site, caller):
    """A minted key is bound to the project unless an unbound creator says otherwise."""
    elsewhere = await site.new_project()
    spawn = json.dumps({"project_id": site.project["id"], "prompt": "say spawned"})
    wrong = json.dumps({"project_id": elsewhere["id"], "prompt": "say no"})
    agent = await site.spawn(
        caller,
        f"call oubliette_session_spawn {spawn}\n"
        f"call oubliette_session_spawn {wrong}\n"
        'call oubliette_project_create {"name": "nor this"}',
        api_key_scope="write",
    )
    made, refused, unbound = [json.loads(text) for text in await agent.turn()]
    assert made["structured"]["spawned"]
    child = site.agent(made["structured"]["session_id"])
    record = await child.get()
    assert (record["parent_session_id"], record["depth"]) == (agent.session_id, 1)
    assert refused["is_error"]
    assert "not found" in refused["text"]
    assert unbound["is_error"]
    assert "insufficient permissions" in unbound["text"]


async def spawned_elsewhere(site, agent, project, prompt):
    """A session in another project that an agent has started there with its key."""
    spawn = json.dumps({"project_id": project["id"], "prompt": prompt, "new_session": True})
    outcome = await agent.ask(f"call oubliette_session_spawn {spawn}")
    assert not outcome["is_error"], outcome
    return site.agent(outcome["structured"]["session_id"])


async def wide(site, caller, **more):
    """An agent whose key reaches all projects."""
    more = {"api_key_scope": "write", "api_key_project": "*", **more}
    agent = await site.spawn(caller, "say SECRET of the parent", **more)
    await agent.turn()
    return agent


async def test_a_session_started_from_another_project_tells_nothing_of_its_parent(site, caller):
    """Neither to a key of its own project, nor to its agent, which gets no other's log."""
    elsewhere = await site.new_project()
    agent = await wide(site, caller)
    child = await spawned_elsewhere(site, agent, elsewhere, "say child")
    await child.turn()
    key = site.server.token(f"project:{elsewhere['id']}:ro")
    async with HttpCaller(site.server.url, key, caller_id="reader") as reader:
        asked = {"session_id": child.session_id}
        for tool, more in [
            ("session_get", {}),
            ("session_list", {}),
            ("session_events", {"max_events": 1000}),
            ("session_events", {"max_events": 1000, "include_children": True}),
        ]:
            about = {"project_id": elsewhere["id"]} if tool == "session_list" else asked
            shown = await reader.call(tool, **about, **more)
            assert child.session_id in json.dumps(shown)
            assert agent.session_id not in json.dumps(shown)
    created = await child.event("status", status="created")
    assert (created["parent_session_id"], created["depth"]) == (None, 1)
    assert (await child.get())["parent_session_id"] == agent.session_id  # with an admin's key


async def test_an_agent_reads_no_log_of_another_project(site, caller):
    """Neither up nor down its tree: it gets what the call that started the child answered."""
    elsewhere = await site.new_project()
    agent = await wide(site, caller)
    up = json.dumps({"session_id": agent.session_id})
    child = await spawned_elsewhere(site, agent, elsewhere, f"call session_events {up}")
    outcome = await child.outcome()
    assert outcome["is_error"]
    assert "there is no session" in outcome["text"]
    assert "SECRET" not in outcome["text"]
    outcome = await agent.ask(f"call session_events {json.dumps({'session_id': child.session_id})}")
    assert outcome["is_error"]
    same = await spawned_elsewhere(site, agent, site.project, f"call session_events {up}")
    assert "SECRET" in json.dumps(await same.outcome())  # those of its own project it reads


async def test_an_agent_never_answers_its_own_callers_request(site):
    """Caller tools are for HTTP only, whatever the key's scope."""
    token = site.server.token("admin")
    async with site.caller("http-auto", token=token) as caller:
        agent = await site.spawn(caller, "tools", api_key_scope="admin", api_key_project="*")
        names = await agent.outcome()
        assert "oubliette_token_list" in names
        assert not {name for name in names if name.startswith("oubliette_caller_")}


async def test_a_key_is_never_wider_than_its_creators_right(site):
    async with site.caller("http-auto") as writer:
        for scope in ("admin", "nonsense"):
            with pytest.raises(ToolFailed):
                await site.spawn(writer, "say hi", api_key_scope=scope)
    bound = site.server.token(f"project:{site.project['id']}")
    async with site.caller("http-auto", token=bound) as caller:
        with pytest.raises(ToolFailed):
            await site.spawn(caller, "say hi", api_key_scope="read", api_key_project="*")
        agent = await site.spawn(caller, "call oubliette_project_list {}", api_key_scope="read")
        assert len((await agent.outcome())["structured"]["projects"]) == 1


async def test_a_minted_key_is_no_good_over_http(site, caller):
    """Valid only on its own session's link."""
    agent = await site.spawn(caller, "say here", api_key_scope="read")
    await agent.turn()
    async with HttpCaller(site.server.url, await key_of(site, agent)) as thief:
        with pytest.raises(HttpError, match="401"):
            await thief.call("project_list")


async def test_a_minted_key_is_no_good_on_another_sessions_link(site, caller):
    """-32001, and nothing is told of why."""
    agent = await site.spawn(caller, "say here", api_key_scope="read")
    other = await site.spawn(caller, "say here")
    await agent.turn()
    await other.turn()
    key = await key_of(site, agent)
    async with WireClient.connect(site, other.session_id) as link:
        for method, params in (
            ("oubliette_tools", {"api_key": key}),
            ("oubliette_call_tool", {"api_key": key, "tool": "project_list", "arguments": {}}),
            ("oubliette_tools", {"api_key": "oub_nonsense"}),
            ("oubliette_tools", {"api_key": "x" * 400}),
        ):
            reply = await link.call(method, params)
            assert reply["error"]["code"] == -32001
            assert reply["error"]["message"].startswith("invalid or expired API key")
    async with WireClient.connect(site, agent.session_id) as link:
        reply = await link.call("oubliette_tools", {"api_key": key})
        assert {tool["name"] for tool in reply["result"]["tools"]} == READ
        reply = await link.call(
            "oubliette_call_tool", {"api_key": key, "tool": "session_end", "arguments": {}}
        )
        assert reply["error"]["code"] == -32002


async def test_a_minted_key_dies_with_its_session(site, caller):
    agent = await site.spawn(caller, "say here", api_key_scope="read")
    await agent.turn()
    ((before,),) = site.server.query(
        "SELECT count(*) FROM tokens WHERE session_id = ?", agent.session_id
    )
    assert before == 1
    await agent.end()
    listed = site.server.control("token_list")["tokens"]
    assert [token for token in listed if token["session_id"] == agent.session_id] == []


async def test_a_spawn_that_is_refused_leaves_no_key_behind(site, caller):
    before = len(site.server.control("token_list")["tokens"])
    with pytest.raises(ToolFailed):
        await site.spawn(
            caller,
            "say hi",
            api_key_scope="read",
            workspace_id="00000000-0000-4000-8000-000000000000",
        )
    assert len(site.server.control("token_list")["tokens"]) == before


async def test_an_invalid_key_of_the_caller_leaves_the_agent_without_those_tools(site, caller):
    """An invalid key: a warning, and start-up goes on."""
    agent = await site.spawn(caller, "tools\nsay still here", api_key="oub_wrong_key")
    names, said = await agent.turn()
    assert not [name for name in json.loads(names) if name.startswith("oubliette_")]
    assert said == "still here"


async def test_a_key_of_the_callers_own_works_with_its_own_right(site, caller):
    """`api_key`."""
    key = site.server.token("read")
    agent = await site.spawn(caller, "call oubliette_project_list {}", api_key=key)
    assert not (await agent.outcome())["is_error"]


async def test_a_bad_argument_of_an_agent_names_its_field(site, caller):
    agent = await site.spawn(
        caller,
        'call oubliette_project_get {}\ncall oubliette_project_get {"project_id": 5}\n'
        'call oubliette_project_list {"colour": "red"}',
        api_key_scope="read",
    )
    missing, wrong, unknown = [json.loads(text) for text in await agent.turn()]
    assert missing["is_error"]
    assert missing["text"].startswith("project_id: is required")
    assert wrong["text"].startswith("project_id: must be a string")
    assert unknown["text"].startswith("'colour': unknown parameter")


async def test_two_keys_of_two_sessions_do_not_mix(site, caller):
    """The boundary of rights is each session's own link."""
    read = await site.spawn(caller, "tools", api_key_scope="read")
    write = await site.spawn(caller, "tools", api_key_scope="write")
    none = await site.spawn(caller, "tools")
    sets = [
        {name for name in await agent.outcome() if name.startswith("oubliette_")}
        for agent in (read, write, none)
    ]
    assert sets[0] < sets[1]
    assert "oubliette_session_spawn" in sets[1]
    assert sets[2] == set()


@pytest.mark.parametrize(
    "isolated",
    # Without a sandbox a command reads the environment of all processes of its user.
    [False, pytest.param(True, marks=pytest.mark.requires("bubblewrap"))],
)
async def test_nothing_is_run_beside_an_agent_whose_key_reaches_further(site, caller, isolated):
    """What runs in its container could read the key from its environment."""
    project = await site.new_project(workspace_isolation=isolated)
    agent = await site.spawn(
        caller,
        "say here",
        project_id=project["id"],
        create_workspace=True,
        api_key_scope="write",
        api_key_project="*",
    )
    await agent.turn()
    place = {
        "project_id": project["id"],
        "workspace_id": (await agent.get())["workspace_id"],
    }
    bound = site.server.token(f"project:{project['id']}")
    async with HttpCaller(site.server.url, bound) as other:
        look = {"command": "cat /proc/*/environ"}
        for tool, given in (("container_exec", look), ("session_spawn", {"prompt": "say hi"})):
            with pytest.raises(ToolFailed, match="reaches further than yours"):
                await other.call(tool, **place, **given)
        await caller.call("container_exec", **place, **look)
        if isolated:
            place = {"project_id": project["id"]}
            assert "OUBLIETTE_API_KEY" not in str(
                await other.call("container_exec", **place, **look)
            )
        await agent.end()
        await other.call("container_exec", **place, **look)


@pytest.mark.parametrize("how", ["spawned", "resumed"])
async def test_nothing_is_run_beside_an_agent_that_was_given_a_wider_key_of_its_owner(site, how):
    """A narrower key of the same principal is no reason to trust who has it with the wider one."""
    project = (await site.new_project())["id"]
    made = await site.eyes.call("token_create", name="own", scope="write")
    owner = {"principal": made["principal"]}
    narrow = await site.eyes.call("token_create", name="ci", scope=f"project:{project}", **owner)
    given = {"api_key": made["token"]}
    async with (
        site.caller("http-auto", token=made["token"]) as caller,
        HttpCaller(site.server.url, narrow["token"]) as other,
    ):
        first = given if how == "spawned" else {}
        agent = await site.spawn(caller, "say here", project_id=project, **first)
        await agent.turn()
        look = {"project_id": project, "command": "true"}
        if how == "resumed":
            await other.call("container_exec", **look)
            await agent.say("crash 3")
            await agent.event("status", status="failed")
            await agent.say("say again", **given)
            await agent.event("message", text="again")
        with pytest.raises(ToolFailed, match="reaches further than yours"):
            await other.call("container_exec", **look)
        await caller.call("container_exec", **look)
        await site.eyes.call("token_revoke", token_id=made["token_id"])
        await other.call("container_exec", **look)  # what the agent has is good for nothing
