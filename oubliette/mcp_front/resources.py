"""WorkspaceResources, files of workspaces as MCP resources, by the tools for files.

`oubliette://workspaces/<id>/<path>` is a file; with a slash at the end, a folder.
"""

from __future__ import annotations

import base64
import json
import mimetypes
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote_to_bytes

import mcp_types as t
from mcp.shared.exceptions import MCPError

from oubliette.errors import InvalidParameter, NotFound
from oubliette.mcp_front.transport import request_stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.server.context import ServerRequestContext

    from oubliette.mcp_front.tool_adapter import ToolAdapter
    from oubliette.tools.schema.tool_result import ToolResult

    Context = ServerRequestContext[Any, Any]
    Ask = Callable[[Context, str, dict[str, Any]], Awaitable[ToolResult]]

SCHEME: Final = "oubliette://workspaces/"
MAX_RESOURCE: Final = 512 * 1024
"""Bytes of a file: as base64 they fit into a message, which has the content once."""
MAX_TEXT: Final = 900_000  # bytes of text as JSON
PAGE: Final = 100  # workspaces
FOLDER: Final = "inode/directory"


class WorkspaceResources:
    """Resources of the front.

    Args:
        tools: The tool table.
        ask: Calls a tool for the client of a request.
    """

    def __init__(self, tools: ToolAdapter, ask: Ask) -> None:
        self._tools = tools
        self._ask = ask

    async def templates(self, _context: Context, _params: object) -> t.ListResourceTemplatesResult:
        template = t.ResourceTemplate(
            name="workspace file",
            uri_template=SCHEME + "{workspace_id}/{+path}",
            description="A file of a workspace; with a slash at the end, the names in a folder."
            " Reading starts the project's container if it does not run. file_read reads files"
            f" that are larger than {MAX_RESOURCE // 1024} KiB.",
        )
        return t.ListResourceTemplatesResult(
            resource_templates=[template], ttl_ms=0, cache_scope="private"
        )

    async def list(
        self, context: Context, params: t.PaginatedRequestParams | None
    ) -> t.ListResourcesResult:
        """The default workspaces of the projects that the key reaches, as folders."""
        cursor = None if params is None else params.cursor
        arguments = {"limit": PAGE} if cursor is None else {"limit": PAGE, "cursor": cursor}
        page = _answer(await self._ask(context, "project_list", arguments))
        return t.ListResourcesResult(
            resources=[
                t.Resource(
                    name=project["name"],
                    uri=f"{SCHEME}{project['default_workspace_id']}/",
                    description=f"The default workspace of the project {project['id']}.",
                    mime_type=FOLDER,
                )
                for project in page["projects"]
            ],
            next_cursor=page["next_cursor"],
            ttl_ms=0,
            cache_scope="private",
        )

    async def read(
        self, context: Context, params: t.ReadResourceRequestParams
    ) -> t.ReadResourceResult:
        """Return a file, or the names in a folder.

        Raises:
            MCPError: there is no such resource for this key, or it cannot be read.
        """
        uri = str(params.uri)
        workspace_id, path = _parsed(uri)
        assert context.request is not None
        who = request_stream.of(context.request.scope).who
        project_id = await self._tools.project_of_workspace(who.context, workspace_id)
        if project_id is None:
            raise _unknown(uri)
        where = {"project_id": project_id, "workspace_id": workspace_id}
        if not path or path.endswith(b"/"):
            content = await self._folder(context, uri, {**where, **_named(path)})
        else:
            content = await self._file(context, uri, {**where, **_named(path)}, path)
        return t.ReadResourceResult(contents=[content], ttl_ms=0, cache_scope="private")

    async def _folder(
        self, context: Context, uri: str, where: dict[str, Any]
    ) -> t.TextResourceContents:
        listing = _answer(await self._ask(context, "file_list", {**where, "limit": 1000}))
        if listing["kind"] != "folder":
            raise _unknown(uri)
        base = uri if uri.endswith("/") else f"{uri}/"
        names = [
            {**entry, "uri": base + _quoted(entry) + ("/" if entry["kind"] == "folder" else "")}
            for entry in listing["entries"]
        ]
        text = json.dumps({"entries": names, "more": listing["next_cursor"] is not None})
        return t.TextResourceContents(uri=uri, mime_type="application/json", text=text)

    async def _file(
        self, context: Context, uri: str, where: dict[str, Any], path: bytes
    ) -> t.TextResourceContents | t.BlobResourceContents:
        content, version, at = b"", None, 0
        while at is not None:
            asked = {**where, "offset": at, "encoding": "base64"}
            page = _answer(await self._ask(context, "file_read", asked))
            if page["size"] > MAX_RESOURCE:
                raise MCPError(
                    t.INVALID_PARAMS,
                    f"{uri} has {page['size']} bytes, and a resource at most {MAX_RESOURCE}:"
                    " file_read reads it in ranges",
                )
            if version not in {None, page["version"]}:
                raise MCPError(t.INTERNAL_ERROR, f"{uri} changed while it was read: try again")
            version, at = page["version"], page["next_offset"]
            content += base64.b64decode(page["content"])
        kind = mimetypes.guess_type(path.decode("utf-8", "replace"))[0]
        text = _text(content)
        if text is not None:
            return t.TextResourceContents(uri=uri, mime_type=kind or "text/plain", text=text)
        blob = base64.b64encode(content).decode()
        mime_type = kind or "application/octet-stream"
        return t.BlobResourceContents(uri=uri, mime_type=mime_type, blob=blob)


def _parsed(uri: str) -> tuple[str, bytes]:
    if not uri.startswith(SCHEME):
        raise _unknown(uri)
    workspace_id, _, path = uri[len(SCHEME) :].partition("/")
    return workspace_id, unquote_to_bytes(path)


def _named(path: bytes) -> dict[str, str]:
    try:
        return {"path": path.decode()}
    except UnicodeDecodeError:
        return {"path_base64": base64.b64encode(path).decode()}


def _quoted(entry: dict[str, Any]) -> str:
    exact = entry.get("name_base64")
    return quote(entry["name"] if exact is None else base64.b64decode(exact), safe="")


def _text(content: bytes) -> str | None:
    """The content as text, if it is some whose escapes fit into a message."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text or len(json.dumps(text)) > MAX_TEXT else text


def _answer(answer: ToolResult) -> dict[str, Any]:
    if not answer.is_error:
        return answer.structured
    code = answer.structured["error"]["code"]
    ours = code in {NotFound.code, InvalidParameter.code}
    raise MCPError(t.INVALID_PARAMS if ours else t.INTERNAL_ERROR, answer.text)


def _unknown(uri: str) -> MCPError:
    return MCPError(t.INVALID_PARAMS, f"there is no resource {uri[:200]}")
