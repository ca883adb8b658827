"""Projects and workspaces through the public door."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

from tests.callers import ToolFailed

pytestmark = pytest.mark.anyio


@pytest.fixture
async def caller(site):
    async with site.caller("http-auto") as caller:
        yield caller


async def spawn(site, caller, project, prompt="say hi", tool="session_spawn", **more):
    more = {"new_session": True, **more}
    more["prompt" if tool == "session_spawn" else "message"] = prompt
    answer = await caller.call(tool, project_id=project["id"], **more)
    return answer, site.agent(answer["session_id"], caller)


# ---------------------------------------------------------------- the resolution table


@pytest.fixture(params=["session_spawn", "session_message"])
def tool(request):
    """Both tools that resolve a workspace."""
    return request.param


async def test_without_anything_the_default_workspace_is_used(site, caller, tool):
    """Omitted, false."""
    project = await site.new_project()
    answer, agent = await spawn(site, caller, project, "exec pwd", tool=tool)
    assert answer["workspace_id"] == project["default_workspace_id"]
    assert answer["workspace_created"] is False
    outcome = await agent.outcome()
    assert outcome["stdout"].strip() == f"{site.workspaces(project)}/{answer['workspace_id']}"


async def test_a_workspace_is_used_by_its_id(site, caller, tool):
    """Given, false."""
    project = await site.new_project()
    made, _ = await spawn(site, caller, project, create_workspace=True, tool=tool)
    answer, agent = await spawn(
        site, caller, project, "exec pwd", workspace_id=made["workspace_id"], tool=tool
    )
    assert answer["workspace_id"] == made["workspace_id"]
    assert answer["workspace_created"] is False
    assert made["workspace_id"] in (await agent.outcome())["stdout"]


async def test_a_workspace_that_is_not_there_is_an_error(site, caller, tool):
    """Given, false, missing: error if not found."""
    project = await site.new_project()
    wanted = str(uuid.uuid4())
    with pytest.raises(ToolFailed, match=rf"workspace_id.*{wanted}.*create_workspace"):
        await spawn(site, caller, project, workspace_id=wanted, tool=tool)


async def test_a_missing_workspace_is_created_under_its_id(site, caller, tool):
    """Given, true: created if missing, then used."""
    project = await site.new_project()
    wanted = str(uuid.uuid4())
    first, agent = await spawn(
        site, caller, project, "exec pwd", workspace_id=wanted, create_workspace=True, tool=tool
    )
    assert (first["workspace_id"], first["workspace_created"]) == (wanted, True)
    assert wanted in (await agent.outcome())["stdout"]
    again, _ = await spawn(
        site, caller, project, workspace_id=wanted, create_workspace=True, tool=tool
    )
    assert (again["workspace_id"], again["workspace_created"]) == (wanted, False)


async def test_a_new_workspace_gets_a_new_id(site, caller, tool):
    """Omitted, true."""
    project = await site.new_project()
    made = [await spawn(site, caller, project, create_workspace=True, tool=tool) for _ in range(2)]
    found = {answer["workspace_id"] for answer, _ in made}
    assert len(found) == 2
    assert all(answer["workspace_created"] for answer, _ in made)
    assert all(uuid.UUID(each) for each in found)
    listed = await caller.call("workspace_list", project_id=project["id"])
    assert {each["id"] for each in listed["workspaces"]} == found | {
        project["default_workspace_id"]
    }


async def test_a_workspace_carries_the_callers_own_id(site, caller, tool):
    """External ID."""
    project = await site.new_project()
    answer, _ = await spawn(
        site,
        caller,
        project,
        create_workspace=True,
        external_id="user-7",
        source="signal",
        tool=tool,
    )
    listed = await caller.call("workspace_list", project_id=project["id"])
    (mine,) = [each for each in listed["workspaces"] if not each["is_default"]]
    assert mine["id"] == answer["workspace_id"]
    assert (mine["external_id"], mine["source"]) == ("user-7", "signal")
    assert mine["last_session_at"] is not None


async def test_a_workspace_of_another_project_is_not_there(site, caller, tool):
    """The project is taken from the record."""
    one, two = await site.new_project(), await site.new_project()
    theirs = one["default_workspace_id"]
    with pytest.raises(ToolFailed, match="no workspace"):
        await spawn(site, caller, two, workspace_id=theirs, tool=tool)
    with pytest.raises(ToolFailed, match="no workspace"):
        await spawn(site, caller, two, workspace_id=theirs, create_workspace=True, tool=tool)
    with pytest.raises(ToolFailed, match="not found"):
        await caller.call("workspace_delete", project_id=two["id"], workspace_id=theirs)


async def test_sessions_of_a_workspace_share_its_files(site, caller):
    project = await site.new_project()
    _, one = await spawn(site, caller, project, "exec echo shared > file.txt")
    await one.turn()
    _, two = await spawn(site, caller, project, "exec cat file.txt")
    assert (await two.outcome())["stdout"] == "shared\n"


# ---------------------------------------------------------------- workspace_delete


async def test_a_workspace_is_deleted_with_its_files(site, caller):
    project = await site.new_project()
    answer, agent = await spawn(site, caller, project, "exec touch x", create_workspace=True)
    await agent.turn()
    await agent.end()
    folder = site.server.home / "projects" / project["id"] / "workspaces" / answer["workspace_id"]
    assert (folder / "x").exists()
    where = {"project_id": project["id"], "workspace_id": answer["workspace_id"]}
    assert (await caller.call("workspace_delete", **where))["deleted"]
    assert not folder.exists()
    with pytest.raises(ToolFailed, match="not found"):
        await caller.call("workspace_delete", **where)
    with pytest.raises(ToolFailed, match="no workspace"):
        await spawn(site, caller, project, workspace_id=answer["workspace_id"])


async def test_the_default_workspace_is_never_deleted(site, caller):
    project = await site.new_project()
    with pytest.raises(ToolFailed, match="default workspace"):
        await caller.call(
            "workspace_delete",
            project_id=project["id"],
            workspace_id=project["default_workspace_id"],
        )


async def test_a_workspace_is_not_deleted_under_a_live_session(site, caller):
    project = await site.new_project()
    answer, agent = await spawn(site, caller, project, "say hi", create_workspace=True)
    where = {"project_id": project["id"], "workspace_id": answer["workspace_id"]}
    with pytest.raises(ToolFailed, match="1 session lives in this workspace"):
        await caller.call("workspace_delete", **where)
    assert await agent.turn() == ["hi"]
    await agent.end()
    assert (await caller.call("workspace_delete", **where))["deleted"]


# ---------------------------------------------------------------- projects


async def test_a_project_has_a_default_workspace_and_what_was_said_of_it(site, caller):
    made = await caller.call(
        "project_create",
        name="with everything",
        description="about",
        limits={"max_depth": 5, "max_cost_usd": 2.5},
        autonomy="high",
        workspace_isolation=True,
    )
    assert uuid.UUID(made["default_workspace_id"])
    assert made["limits"]["max_depth"] == 5
    assert made["limits"]["max_agents"] is None
    assert (made["description"], made["autonomy"]) == ("about", "high")
    assert await caller.call("project_get", project_id=made["id"]) == made
    answer, agent = await spawn(site, caller, made, f"exec ls {site.workspaces(made)}")
    assert (await agent.outcome())["stdout"].split() == [answer["workspace_id"]]


async def test_agents_find_the_remote_that_a_project_was_made_with(site, caller):
    project = await site.new_project(init_git=True, remote_url="https://example.org/it.git")
    _, agent = await spawn(site, caller, project, "exec git remote get-url origin")
    done = await agent.outcome()
    assert done["stdout"] == "https://example.org/it.git\n", done


COMMIT = "touch it && git add it && git commit --quiet -m it && git log -1 --format=%an:%ae:%cn:%ce"
OURS = "Oubliette agent:agent@oubliette.invalid"


async def test_agents_can_commit_and_are_who_the_repository_says(site, caller):
    project = await site.new_project(init_git=True)
    _, agent = await spawn(site, caller, project, f"exec {COMMIT}")
    done = await agent.outcome()
    assert done["stdout"] == f"{OURS}:{OURS}\n", done
    own = "git config user.name Ada && git config user.email ada@example.org"
    again = COMMIT.replace("touch it", "echo more >>it")
    _, agent = await spawn(site, caller, project, f"exec {own} && {again}")
    assert (await agent.outcome())["stdout"] == "Ada:ada@example.org:Ada:ada@example.org\n"


async def test_commands_can_commit(site):
    project = await site.new_project(init_git=True)
    done = await site.eyes.call("container_exec", project_id=project["id"], command=COMMIT)
    assert done["stdout"] == f"{OURS}:{OURS}\n", done


async def test_a_duplicate_name_is_refused(site, caller):
    """`project already exists`; a deleted project's name is free."""
    made = await caller.call("project_create", name="only one", init_git=False)
    with pytest.raises(ToolFailed, match=f"project already exists: {made['id']} ") as caught:
        await caller.call("project_create", name="only one", init_git=False)
    assert caught.value.structured["error"]["existing_id"] == made["id"]
    await caller.call("project_delete", project_id=made["id"])
    again = await caller.call("project_create", name="only one", init_git=False)
    assert again["id"] != made["id"]


async def test_of_many_creations_at_once_under_one_name_one_succeeds(site, caller):
    told = await asyncio.gather(
        *(caller.call("project_create", name="raced", init_git=False) for _ in range(6)),
        return_exceptions=True,
    )
    (made,) = [each for each in told if isinstance(each, dict)]
    refused = [str(each) for each in told if not isinstance(each, dict)]
    assert all(f"project already exists: {made['id']} " in each for each in refused)


async def test_an_idempotency_key_gives_the_same_project(site, caller):
    asked = {"name": "asked for twice", "idempotency_key": "p1", "init_git": False}
    made = await asyncio.gather(*(caller.call("project_create", **asked) for _ in range(4)))
    assert len({each["id"] for each in made}) == 1
    with pytest.raises(ToolFailed, match="idempotency_key"):
        await caller.call("project_create", **{**asked, "name": "something else"})


async def test_a_project_is_not_deleted_while_sessions_live(site, caller):
    """Refused before anything is touched."""
    project = await site.new_project()
    _, agent = await spawn(site, caller, project, "sleep 0.5\nsay unharmed")
    with pytest.raises(ToolFailed, match="1 session lives in this project"):
        await caller.call("project_delete", project_id=project["id"])
    assert (await agent.turn())[-1] == "unharmed"
    assert (await caller.call("project_get", project_id=project["id"]))["id"] == project["id"]
    await agent.end()
    deleted = await caller.call("project_delete", project_id=project["id"])
    assert deleted == {"project_id": project["id"], "deleted": True}
    with pytest.raises(ToolFailed, match="not found"):
        await caller.call("project_get", project_id=project["id"])
    assert not (site.server.home / "projects" / project["id"]).exists()
    assert site.server.query("SELECT id FROM containers WHERE project_id = ?", project["id"]) == []


async def test_projects_are_listed_in_pages_in_a_stable_order(site, caller):
    for n in range(5):
        await caller.call("project_create", name=f"page {n}", init_git=False)
    names, cursor = [], None
    while True:
        more = {"cursor": cursor} if cursor else {}
        page = await caller.call("project_list", name_contains="PAGE", limit=2, **more)
        names += [each["name"] for each in page["projects"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert names == [f"page {n}" for n in range(5)]


async def test_options_say_what_may_be_chosen(site, caller):
    options = await caller.call("project_options")
    assert "scripted" in options["agents"]
    assert options["limits"]["max_depth"] == 3
    with pytest.raises(ToolFailed, match="agent: there is no 'gpt'"):
        await caller.call("project_create", name="wrong agent", agent="gpt")
    json.dumps(options)


# ---------------------------------------------------------------- isolation


async def test_isolated_workspaces_have_containers_of_their_own_and_their_callers_tools(site):
    project = await site.new_project(workspace_isolation=True)
    tools = {"whoami": lambda me: me}
    async with site.caller("http-auto", tools=tools) as caller:
        await caller.listen()
        prompt = 'exec ls %s\ncall myapp_whoami {"me": "%s"}'
        agents = [
            (
                await spawn(
                    site,
                    caller,
                    project,
                    prompt % (site.workspaces(project), n),
                    create_workspace=True,
                    context=caller.context,
                )
            )
            for n in range(2)
        ]
        for n, (answer, agent) in enumerate(agents):
            listed, called = [json.loads(text) for text in await agent.turn()]
            seen = listed["stdout"].split()
            assert answer["workspace_id"] in seen
            assert len(seen) == 1 or not site.server.sandboxed
            assert called["text"] == str(n)
        got = await caller.call("project_get", project_id=project["id"])
        assert {each["workspace_id"] for each in got["containers"]} == {
            answer["workspace_id"] for answer, _ in agents
        }
