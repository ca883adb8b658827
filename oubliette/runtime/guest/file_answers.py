"""Answers of the files program as records, and its refusals as errors.

It runs as the agents' user, and what it writes is what they could have written: a name, a size or
a reason is checked here before anything else sees it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from oubliette.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    InvalidParameter,
    LimitExceeded,
    NotFound,
    OublietteError,
    ProtocolViolation,
    RuntimeFailure,
)
from oubliette.incontainer.files.frames import name_bytes

SHOWN: Final = 200  # characters of a path in an error
_NANO: Final = 10**9
_FAR: Final = (1 << 63) * _NANO
"""Nanoseconds of the last second of a file system: agents set any time (`touch -d 2999-01-01`)."""


class FileStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a file, a folder, a link or something special, such as a pipe."""

    kind: str
    """`file`, `folder`, `link` or `special`."""
    modified: float
    """Seconds since 1970-01-01 UTC."""
    size: int = 0
    executable: bool = False
    version: str = ""


class FolderEntry(FileStatus, frozen=True, kw_only=True):
    """One name in a folder."""

    name: bytes
    target: bytes = b""
    """Target of a link."""


class FolderPage(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a path, and a page of its names if it is a folder."""

    status: FileStatus
    entries: tuple[FolderEntry, ...] = ()
    next: bytes | None = None
    """Name after which the next page begins; None: there is none."""


class FileRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of a file's bytes."""

    status: FileStatus
    data: bytes


class FileWritten(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder that was written, or the piece of a file that has arrived."""

    created: bool
    received: int
    """Bytes of the file that have arrived."""
    version: str
    """Of the new file; empty: more pieces are to come, or it is a folder."""


class FilesDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """The number of files, links and folders that were deleted."""

    deleted: int


def folder_page(fields: dict[str, Any]) -> FolderPage:
    entries = [_entry(each) for each in _list(fields, "entries")]
    return FolderPage(
        status=_status(fields),
        entries=tuple(entries),
        next=name_bytes(_text(fields, "last")) if fields.get("more") is True else None,
    )


def file_range(fields: dict[str, Any], data: bytes) -> FileRange:
    return FileRange(status=_status(fields), data=data)


def file_written(fields: dict[str, Any]) -> FileWritten:
    received = fields.get("received", fields.get("size", 0))
    return FileWritten(
        created=fields.get("created") is True,
        received=_number({"received": received}, "received"),
        version=_word(fields.get("version", "")),
    )


def files_deleted(fields: dict[str, Any]) -> FilesDeleted:
    return FilesDeleted(deleted=_number(fields, "deleted"))


def _entry(given: object) -> FolderEntry:
    if not isinstance(given, dict):
        raise _strange("entries")
    fields: dict[str, Any] = given  # pyright: ignore[reportUnknownVariableType] - of JSON
    status = _status(fields)
    name = name_bytes(_text(fields, "name"))
    if not name or b"/" in name or b"\0" in name or name in {b".", b".."}:
        raise _strange("name")
    target = name_bytes(_text({"target": "", **fields}, "target"))
    return FolderEntry(name=name, target=target, **msgspec.structs.asdict(status))


def _status(fields: dict[str, Any]) -> FileStatus:
    kind = fields.get("kind")
    if not isinstance(kind, str) or kind not in {"file", "folder", "link", "special"}:
        raise _strange("kind")
    return FileStatus(
        kind=kind,
        modified=_number(fields, "modified", least=-_FAR, most=_FAR) / _NANO,
        size=_number({"size": 0, **fields}, "size"),
        executable=fields.get("executable") is True,
        version=_word(fields.get("version", "")),
    )


def _list(fields: dict[str, Any], name: str) -> list[object]:
    value: object = fields.get(name)
    if not isinstance(value, list):
        raise _strange(name)
    return list(value)  # pyright: ignore[reportUnknownArgumentType] - of JSON


def _text(fields: dict[str, Any], name: str) -> str:
    value: object = fields.get(name)
    if not isinstance(value, str):
        raise _strange(name)
    try:
        name_bytes(value)
    except UnicodeEncodeError:
        raise _strange(name) from None
    return value


def _word(value: object) -> str:
    if not isinstance(value, str) or len(value) > SHOWN or not (value.isascii() or not value):
        raise _strange("version")
    return value


def _number(fields: dict[str, Any], name: str, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
    value: object = fields.get(name)
    if type(value) is not int or not least <= value <= most:
        raise _strange(name)
    return value


def _strange(name: str) -> ProtocolViolation:
    return ProtocolViolation(f"the files program in the container sent an invalid {name}")


def refusal(fields: dict[str, Any], path: str) -> OublietteError | None:
    """Return the error for an answer that reports a problem; None: it reports none.

    Args:
        fields: the answer.
        path: the path as the caller gave it.
    """
    reason = fields.get("problem")
    if reason is None:
        return None
    if reason == "no_upload":
        return _no_upload(fields)
    known = _REFUSALS.get(reason) if isinstance(reason, str) else None
    kind, text, hint = known or (RuntimeFailure, _failed(fields), None)
    shown = path[:SHOWN] or "the workspace"
    if kind is InvalidParameter:
        return InvalidParameter(f"path: {shown} {text}", field="path", hint=hint)
    return kind(f"{shown} {text}", hint=hint)


def _failed(fields: dict[str, Any]) -> str:
    detail = fields.get("detail")
    words = detail if isinstance(detail, str) and detail.isprintable() else ""
    return f"cannot be used: {words[:SHOWN] or 'the operation failed'}"


def _no_upload(fields: dict[str, Any]) -> Conflict:
    arrived = str(fields.get("detail", "0"))[:20]
    arrived = arrived if arrived.isdecimal() else "0"
    return Conflict(
        f"offset: {arrived} bytes of this upload have arrived, and the piece begins after them",
        hint=f"go on with offset {arrived}",
    )


_REFUSALS: Final[dict[str, tuple[type[OublietteError], str, str | None]]] = {
    "missing": (NotFound, "does not exist", "file_list shows what does"),
    "no_workspace": (NotFound, "is not there: the workspace has no folder", None),
    "not_folder": (InvalidParameter, "leads through what is not a folder", None),
    "is_folder": (InvalidParameter, "is a folder", "file_list shows what it holds"),
    "special": (InvalidParameter, "is not a regular file but a pipe, a socket or a device", None),
    "root": (InvalidParameter, "is the workspace itself", "workspace_delete deletes that"),
    "outside": (InvalidParameter, "leads out of the workspace", "container_exec can read it"),
    "loop": (InvalidParameter, "leads through too many links", None),
    "too_long": (InvalidParameter, "is too long, or too many folders deep", None),
    "denied": (Forbidden, "is not accessible to the agents' user", "container_exec: chmod"),
    "read_only": (Forbidden, "is on a file system that is read-only", None),
    "exists": (AlreadyExists, "exists already", None),
    "not_empty": (Conflict, "is a folder that is not empty", "recursive deletes what it holds"),
    "version": (Conflict, "was changed since that version", "read it again"),
    "changed": (Conflict, "was replaced at this moment", "try again"),
    "full": (LimitExceeded, "does not fit: the disk or its quota is full", "delete something"),
}
