"""Files of workspaces as MCP resources, as the official SDK reads them in both generations."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from mcp.shared.exceptions import MCPError

from tests.callers import HttpCaller, SdkCaller
from tests.consent import delete_with_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.system.site import Site

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def project(shared_site: Site) -> AsyncIterator[dict[str, Any]]:
    eyes = shared_site.eyes
    made = await eyes.call("project_create", name="resources", init_git=False)
    for path, text in (("notes/ä b.md", "Grüße"), ("data.json", "{}")):
        await eyes.call("file_write", project_id=made["id"], path=path, text=text)
    binary = base64.b64encode(b"\x89PNG\0").decode()
    await eyes.call("file_write", project_id=made["id"], path="logo.png", data=binary)
    yield made
    await eyes.call("container_stop", project_id=made["id"], force=True)
    await delete_with_all(eyes.call, made["id"])


@pytest.fixture(params=["auto", "legacy"])
async def client(request: pytest.FixtureRequest, site: Site) -> AsyncIterator[Any]:
    server = site.server
    async with SdkCaller(
        server.url, server.token("read"), mode=request.param, events=False, caller_id="reader"
    ) as caller:
        yield caller.client


def base(project: dict[str, Any]) -> str:
    return f"oubliette://workspaces/{project['default_workspace_id']}/"


async def test_workspaces_are_listed_as_folders_and_lead_to_their_files(
    client: Any, project: dict[str, Any]
) -> None:
    (template,) = (await client.list_resource_templates()).resource_templates
    assert template.uri_template == "oubliette://workspaces/{workspace_id}/{+path}"
    listed = {each.name: each for each in (await client.list_resources()).resources}
    assert str(listed["resources"].uri) == base(project)
    (content,) = (await client.read_resource(base(project))).contents
    entries = {entry["name"]: entry for entry in json.loads(content.text)["entries"]}
    assert entries["notes"]["uri"] == base(project) + "notes/"
    (content,) = (await client.read_resource(entries["notes"]["uri"])).contents
    (entry,) = json.loads(content.text)["entries"]
    (content,) = (await client.read_resource(entry["uri"])).contents
    assert (content.text, content.mime_type) == ("Grüße", "text/markdown")


async def test_text_and_bytes_have_their_kinds(client: Any, project: dict[str, Any]) -> None:
    (content,) = (await client.read_resource(base(project) + "data.json")).contents
    assert (content.text, content.mime_type) == ("{}", "application/json")
    (content,) = (await client.read_resource(base(project) + "logo.png")).contents
    assert (base64.b64decode(content.blob), content.mime_type) == (b"\x89PNG\0", "image/png")


@pytest.mark.parametrize(
    "rest",
    ["nothing", "..%2F..%2Fx", "%2Fetc%2Fpasswd", "notes", "data.json/", "%00", "notes/../.."],
)
async def test_what_is_no_resource_is_refused(
    client: Any, project: dict[str, Any], rest: str
) -> None:
    with pytest.raises(MCPError) as caught:
        await client.read_resource(base(project) + rest)
    assert caught.value.error.code == -32602


async def test_a_large_file_names_the_tool_that_reads_it(
    client: Any, site: Site, project: dict[str, Any]
) -> None:
    command = "truncate -s 600000 large"
    await site.eyes.call("container_exec", project_id=project["id"], command=command)
    with pytest.raises(MCPError, match="file_read"):
        await client.read_resource(base(project) + "large")


async def test_a_key_of_another_project_sees_no_workspace(
    site: Site, project: dict[str, Any]
) -> None:
    other = await site.eyes.call("project_create", name="other", init_git=False)
    admin_key = site.server.token("admin")
    async with HttpCaller(site.server.url, admin_key, caller_id="admin") as admin:
        made = await admin.call("token_create", name="x", scope=f"project:{other['id']}:ro")
    async with SdkCaller(
        site.server.url, made["token"], events=False, caller_id="reader"
    ) as caller:
        with pytest.raises(MCPError, match="no resource"):
            await caller.client.read_resource(base(project) + "data.json")
        listed = (await caller.client.list_resources()).resources
        assert [each.name for each in listed] == ["other"]
