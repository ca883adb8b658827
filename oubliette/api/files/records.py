"""Records of files, and of what was copied."""

from __future__ import annotations

import msgspec


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A file, a folder, a link or something special in a workspace."""

    name: str
    """Bytes that are not UTF-8 are lone surrogates, as in the functions of `os`."""
    kind: str
    """`file`, `folder`, `link` or `special` (a pipe, a socket, a device)."""
    size: int = 0
    """Bytes of a file."""
    modified_at: float = 0.0
    """Seconds since 1970."""
    executable: bool = False
    target: str | None = None
    """Target of a link."""


class CopiedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files that were copied between a workspace and this machine."""

    files: int
    """Number of them, folders not counted."""
    bytes: int
    skipped: tuple[str, ...] = ()
    """Paths of what is neither a file nor a folder: links, pipes, sockets, devices."""
