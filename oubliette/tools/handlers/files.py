"""Tools of the files of a workspace: `file_*`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from oubliette.actors.container.messages import (
    DeleteFile,
    ListFolder,
    ReadFile,
    WriteFile,
)
from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.errors import InvalidParameter
from oubliette.tools.handlers.containers import container_in_use, workspace_path
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.schema import response_size
from oubliette.tools.schema.file_contents import (
    MAX_READ,
    MAX_WRITE,
    Encoding,
    encoded,
    from_base64,
    name_text,
    path_bytes,
    to_base64,
)
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette.runtime.guest.file_answers import FileStatus, FolderEntry, FolderPage
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

SECONDS: Final = 60.0  # for one operation
QUEUE_SECONDS: Final = 120.0  # for those before it in the same container

_Project = Annotated[field_types.ProjectId, Meta(description="Id of the project.")]
_Workspace = Annotated[
    field_types.Uuid | None, Meta(description="UUID of a workspace. Unset: the default one.")
]
_Path = Annotated[
    Annotated[str, Meta(max_length=4096)] | None,
    Meta(description="Path, relative to the workspace or absolute inside it."),
]
_PathBase64 = Annotated[
    Annotated[str, Meta(max_length=8192)] | None,
    Meta(description="The path as base64, if a name in it is not UTF-8; instead of `path`."),
]


class FileList(Params, frozen=True, kw_only=True):
    """Parameters of `file_list`."""

    project_id: _Project
    path: _Path = None
    path_base64: _PathBase64 = None
    workspace_id: _Workspace = None
    limit: Annotated[field_types.PageSize, Meta(description="Maximum number of names.")] = 500
    cursor: Annotated[
        field_types.Cursor | None, Meta(description="`next_cursor` of the page before.")
    ] = None


class FileRead(Params, frozen=True, kw_only=True):
    """Parameters of `file_read`."""

    project_id: _Project
    path: _Path = None
    path_base64: _PathBase64 = None
    workspace_id: _Workspace = None
    offset: Annotated[int, Meta(ge=0, le=(1 << 63) - 1, description="First byte.")] = 0
    length: Annotated[int, Meta(ge=0, le=MAX_READ, description="Maximum number of bytes.")] = (
        MAX_READ
    )
    encoding: Annotated[
        Encoding | None, Meta(description="Unset: text if it is UTF-8, otherwise base64.")
    ] = None


class FileWrite(Params, frozen=True, kw_only=True):
    """Parameters of `file_write`."""

    project_id: _Project
    path: _Path = None
    path_base64: _PathBase64 = None
    workspace_id: _Workspace = None
    text: Annotated[
        Annotated[str, Meta(max_length=MAX_WRITE)] | None,
        Meta(description="The content as text, written as UTF-8."),
    ] = None
    data: Annotated[
        Annotated[str, Meta(max_length=MAX_WRITE // 3 * 4 + 4)] | None,
        Meta(description="The content as base64, instead of `text`."),
    ] = None
    folder: Annotated[bool, Meta(description="Make a folder instead of a file.")] = False
    executable: Annotated[
        bool | None, Meta(description="Whether it may be run. Unset: as before, or not.")
    ] = None
    expected_version: Annotated[
        Annotated[str, Meta(max_length=200)] | None,
        Meta(description="`version` that the file must still have; `absent`: it must not exist."),
    ] = None
    upload: Annotated[
        Annotated[str, Meta(min_length=1, max_length=64, pattern="^[A-Za-z0-9_-]+$")] | None,
        Meta(description="Name of your choice for a file that is sent in pieces."),
    ] = None
    offset: Annotated[
        int, Meta(ge=0, le=(1 << 62), description="With `upload`: position of this piece.")
    ] = 0
    final: Annotated[bool, Meta(description="With `upload`: whether this is the last piece.")] = (
        True
    )


class FileDelete(Params, frozen=True, kw_only=True):
    """Parameters of `file_delete`."""

    project_id: _Project
    path: _Path = None
    path_base64: _PathBase64 = None
    workspace_id: _Workspace = None
    recursive: Annotated[bool, Meta(description="Also a folder that is not empty.")] = False


class FileView(Result, frozen=True, kw_only=True):
    """One name in a folder."""

    name: str
    kind: Annotated[str, Meta(description="file, folder, link or special (a pipe, a device).")]
    size: int | None
    modified_at: float
    executable: bool
    target: Annotated[str | None, Meta(description="Where a link leads.")] = None
    name_base64: Annotated[str | None, Meta(description="Set if the name is not UTF-8.")] = None


class FileListing(Result, frozen=True, kw_only=True):
    """Result of `file_list`."""

    kind: str
    size: int | None
    modified_at: float
    version: str | None
    entries: tuple[FileView, ...]
    next_cursor: str | None


class FileContent(Result, frozen=True, kw_only=True):
    """Result of `file_read`."""

    content: str
    encoding: Encoding
    offset: int
    length: Annotated[int, Meta(description="Bytes of the file that `content` stands for.")]
    next_offset: Annotated[int | None, Meta(description="null: the file ends here.")]
    size: int
    modified_at: float
    executable: bool
    version: str


class FileSaved(Result, frozen=True, kw_only=True):
    """Result of `file_write`."""

    created: bool
    size: Annotated[int, Meta(description="Bytes that have arrived.")]
    version: Annotated[str | None, Meta(description="null: more pieces are to come.")]


class FileRemoved(Result, frozen=True, kw_only=True):
    """Result of `file_delete`."""

    deleted: Annotated[int, Meta(description="Number of files, links and folders.")]


@tool(FileList, FileListing, scope="read", read_only=True, runs_on="needed")
async def file_list(services: ToolServices, context: CallContext, params: FileList) -> FileListing:
    """List a folder of a workspace by name, or describe a file.

    The project's container is started if it does not run. Links are followed as long as they stay
    in the workspace.
    """
    project = await visible_project(services, context, params.project_id)
    workspace = workspace_path(project, params.workspace_id)
    path = path_bytes(params.path, params.path_base64, workspace)
    after = b"" if params.cursor is None else from_base64(params.cursor, "cursor")
    async with container_in_use(services, project, params.workspace_id, "files") as actor:
        page: FolderPage = await actor.ask(
            ListFolder(workspace=workspace, path=path, after=after, limit=params.limit),
            timeout=SECONDS + QUEUE_SECONDS,
        )
    views, _, cut = response_size.fitting([_view(entry) for entry in page.entries])
    last = page.entries[len(views) - 1].name if cut else page.next
    return FileListing(
        kind=page.status.kind,
        size=_size(page.status),
        modified_at=page.status.modified,
        version=page.status.version or None,
        entries=tuple(views),
        next_cursor=None if last is None else to_base64(last),
    )


@tool(FileRead, FileContent, scope="read", read_only=True, runs_on="needed")
async def file_read(services: ToolServices, context: CallContext, params: FileRead) -> FileContent:
    """Read a file of a workspace, or a range of its bytes.

    The project's container is started if it does not run. Large files are read in ranges: go on
    with next_offset. If version changes meanwhile, so has the file.
    """
    project = await visible_project(services, context, params.project_id)
    workspace = workspace_path(project, params.workspace_id)
    path = path_bytes(params.path, params.path_base64, workspace)
    async with container_in_use(services, project, params.workspace_id, "files") as actor:
        message = ReadFile(
            workspace=workspace, path=path, offset=params.offset, length=params.length
        )
        found = await actor.ask(message, timeout=SECONDS + QUEUE_SECONDS)
    data: bytes = found.data[: params.length]
    more = params.offset + len(data) < found.status.size
    content, encoding, length = encoded(data, params.encoding, more=more)
    end = params.offset + length
    return FileContent(
        content=content,
        encoding=encoding,
        offset=params.offset,
        length=length,
        next_offset=end if end < found.status.size else None,
        size=found.status.size,
        modified_at=found.status.modified,
        executable=found.status.executable,
        version=found.status.version,
    )


@tool(FileWrite, FileSaved, scope="write", destructive=True, runs_on="needed")
async def file_write(services: ToolServices, context: CallContext, params: FileWrite) -> FileSaved:
    """Write a file of a workspace whole, replacing it at once, or make a folder.

    The project's container is started if it does not run, and missing folders are made. A file
    that is larger than a call can carry is sent in pieces with the same upload and the offset of
    each; it takes its place with the final one.
    """
    project = await visible_project(services, context, params.project_id)
    workspace = workspace_path(project, params.workspace_id)
    path = path_bytes(params.path, params.path_base64, workspace)
    if not path:
        raise InvalidParameter("path: a path in the workspace is needed", field="path")
    message = WriteFile(
        workspace=workspace,
        path=path,
        data=_content(params),
        folder=params.folder,
        expected=params.expected_version,
        executable=params.executable,
        upload=params.upload or "",
        offset=params.offset,
        final=params.final,
    )
    async with container_in_use(services, project, params.workspace_id, "files") as actor:
        done = await actor.ask(message, timeout=SECONDS + QUEUE_SECONDS)
    return FileSaved(created=done.created, size=done.received, version=done.version or None)


@tool(FileDelete, FileRemoved, scope="write", destructive=True, runs_on="needed")
async def file_delete(
    services: ToolServices, context: CallContext, params: FileDelete
) -> FileRemoved:
    """Delete a file or a folder of a workspace; of a link, the link itself.

    The project's container is started if it does not run.
    """
    project = await visible_project(services, context, params.project_id)
    workspace = workspace_path(project, params.workspace_id)
    path = path_bytes(params.path, params.path_base64, workspace)
    if not path:
        raise InvalidParameter("path: a path in the workspace is needed", field="path")
    async with container_in_use(services, project, params.workspace_id, "files") as actor:
        message = DeleteFile(workspace=workspace, path=path, recursive=params.recursive)
        done = await actor.ask(message, timeout=SECONDS + QUEUE_SECONDS)
    return FileRemoved(deleted=done.deleted)


def _content(params: FileWrite) -> bytes:
    """The bytes to write, once it is certain what the call means."""
    given = [name for name in ("text", "data") if getattr(params, name) is not None]
    if params.folder:
        if given or params.upload is not None:
            raise InvalidParameter("folder: a folder has no content", field="folder")
        return b""
    if len(given) != 1:
        raise InvalidParameter("text: either text or data is needed", field="text")
    if params.upload is None and (params.offset or not params.final):
        raise InvalidParameter("upload: a file in pieces needs a name for them", field="upload")
    if params.data is not None:
        data = from_base64(params.data, "data")
    else:
        data = (params.text or "").encode()
    if len(data) > MAX_WRITE:
        raise InvalidParameter(
            f"{given[0]}: {len(data)} bytes are more than {MAX_WRITE}",
            field=given[0],
            hint="send it in pieces, with upload and offset",
        )
    return data


def _size(status: FileStatus) -> int | None:
    return status.size if status.kind == "file" else None


def _view(entry: FolderEntry) -> FileView:
    name, name_base64 = name_text(entry.name)
    return FileView(
        name=name,
        kind=entry.kind,
        size=_size(entry),
        modified_at=entry.modified,
        executable=entry.executable,
        target=name_text(entry.target)[0] if entry.kind == "link" else None,
        name_base64=name_base64,
    )
