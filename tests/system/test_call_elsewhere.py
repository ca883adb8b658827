"""`oubliette call --url`: any tool of a server that is reached over HTTP, with a key."""

from __future__ import annotations

import json

import pytest

from oubliette.tools.registry import TABLE

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@pytest.fixture
def elsewhere(site, oubliette, tmp_path):
    """Runs `oubliette call` on a home without a server, against the site's over HTTP."""

    async def run(*words: str, key: str = "", url: str = site.server.url):
        return await oubliette(
            "call",
            *words,
            OUBLIETTE_HOME=str(tmp_path / "nothing"),
            OUBLIETTE_URL=url,
            OUBLIETTE_KEY=key or site.principal(),
        )

    return run


async def test_a_tool_is_called_with_the_rights_of_the_key(site, elsewhere, tmp_path):
    key = site.principal()
    made = await elsewhere("project_create", "name=from afar", "init_git=false", key=key)
    assert (made.code, made.err) == (0, "")
    project = made.json["id"]
    assert (await site.eyes.call("project_get", project_id=project))["name"] == "from afar"
    assert not (tmp_path / "nothing").exists()

    refused = await elsewhere("project_delete", f"project_id={project}", key=site.principal("read"))
    assert (refused.code, refused.out) == (4, "")
    assert refused.err.startswith("error: ")


async def test_the_tools_of_that_server_are_listed(site, elsewhere):
    listed = await elsewhere("-o", "json", key=site.principal("admin"))
    assert (listed.code, listed.err) == (0, "")
    names = [tool["name"] for tool in listed.json["tools"]]
    assert names == [tool.name for tool in TABLE.values() if "http" in tool.transports]


@pytest.mark.whole
async def test_refusals_are_those_of_the_server(elsewhere):
    wrong = await elsewhere("project_list", "limit=0")
    assert wrong.code == 2
    assert "limit: must be at least 1" in wrong.err
    missing = await elsewhere("project_get", "project_id=proj_" + "0" * 26, "-o", "json")
    assert missing.code == 3
    assert json.loads(missing.err)["error"]["code"] == "not_found"
    unknown = await elsewhere("no_such_tool")
    assert unknown.code != 0
    assert "no_such_tool" in unknown.err


async def test_a_key_that_the_server_does_not_know(site, elsewhere):
    refused = await elsewhere("project_list", key="oub_" + "0" * 43)
    assert (refused.code, refused.out) == (4, "")
    assert refused.err.startswith(f"error: {site.server.url}: ")
    assert "hint: oubliette token create" in refused.err
    assert "oub_0" not in refused.err


@pytest.mark.whole
async def test_a_server_without_its_path(site, elsewhere):
    bare = site.server.url.removesuffix("/mcp")
    assert (await elsewhere("project_list", url=bare)).code == 0
    wrong = await elsewhere("project_list", url=f"{bare}/other")
    assert wrong.code == 1
    assert "MCP is served at /mcp" in wrong.err  # as the server says itself


async def test_a_caller_answers_a_request_for_permission_by_hand(site, elsewhere):
    key = site.principal()
    async with site.caller("http-auto", token=key) as caller:
        agent = await site.spawn(caller, "ask may I?", autonomy="ask")
        asked = await agent.event("permission_request")
        done = await elsewhere(
            "permission_response",
            f"session_id={agent.session_id}",
            f"request_id={asked['request_id']}",
            "decision=allow",
            key=key,
        )
        assert (done.code, done.err) == (0, "")
        assert await agent.turn()
