"""Paths and contents of files as tools take and give them: text where it is text, else base64."""

from __future__ import annotations

import base64
import binascii
from typing import Final, Literal

from oubliette.errors import InvalidParameter
from oubliette.tools.schema import response_size

Encoding = Literal["text", "base64"]

MAX_PATH: Final = 4096  # bytes
MAX_READ: Final = 256 * 1024
"""Bytes of a file in one answer: as base64, and sent twice, they fit into a message."""
MAX_WRITE: Final = 1024 * 1024
"""Bytes of a file in one call."""
INCOMPLETE: Final = 3  # bytes of a character that the end of a range may cut


def path_bytes(path: str | None, path_base64: str | None, workspace: str) -> bytes:
    """A path below the workspace, given in one of two ways.

    Args:
        path: relative to the workspace, or absolute and inside it.
        path_base64: the same as base64, for names that are not UTF-8.
        workspace: the workspace as documented, absolute.

    Raises:
        InvalidParameter: it is no such path.
    """
    if path is not None and path_base64 is not None:
        raise InvalidParameter(
            "path_base64: either path or path_base64 can be given", field="path_base64"
        )
    field = "path" if path_base64 is None else "path_base64"
    try:
        found = (path or "").encode() if path_base64 is None else from_base64(path_base64, field)
    except UnicodeEncodeError:
        raise InvalidParameter(f"{field}: must be valid Unicode", field=field) from None
    inside = workspace.encode()
    if found.startswith(b"/"):
        if found != inside and not found.startswith(inside + b"/"):
            raise InvalidParameter(
                f"{field}: must be relative to the workspace, or below {workspace}", field=field
            )
        found = found[len(inside) :]
    parts = [part for part in found.split(b"/") if part not in {b"", b"."}]
    if b".." in parts or b"\0" in found or len(found) > MAX_PATH:
        raise InvalidParameter(
            f"{field}: must be a path of at most {MAX_PATH} bytes, without .. and NUL", field=field
        )
    return b"/".join(parts)


def from_base64(text: str, field: str) -> bytes:
    """The bytes of a parameter in base64.

    Raises:
        InvalidParameter: it is not base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidParameter(f"{field}: must be base64", field=field) from None


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def name_text(name: bytes) -> tuple[str, str | None]:
    """Return a name as text, and as base64 if the text is not the whole truth."""
    try:
        return name.decode(), None
    except UnicodeDecodeError:
        return name.decode("utf-8", "replace"), to_base64(name)


def encoded(data: bytes, encoding: Encoding | None, *, more: bool) -> tuple[str, Encoding, int]:
    """Return a range of a file as text or base64, which of the two, and how many bytes it is.

    A character that the end of the range cuts is left to the next one. As text it may be shorter
    than asked for, as escapes make it longer.

    Args:
        data: the range.
        encoding: None: text if it is UTF-8 without NUL, otherwise base64.
        more: whether the file goes on.

    Raises:
        InvalidParameter: text is asked for, and it is none.
    """
    if encoding != "base64":
        text = _text(data, more=more)
        if text is not None:
            return text, "text", len(text.encode())
        if encoding == "text":
            raise InvalidParameter(
                "encoding: this range of the file is not text in UTF-8",
                field="encoding",
                hint="base64 reads it",
            )
    return to_base64(data), "base64", len(data)


def _text(data: bytes, *, more: bool) -> str | None:
    for cut in range(INCOMPLETE + 1 if more else 1):
        try:
            text = data[: len(data) - cut].decode()
        except UnicodeDecodeError:
            continue
        if "\0" in text or (data and not text):
            return None
        while response_size.cost(text) > response_size.MAX_PARTS:
            text = text[: len(text) // 2]
        return text
    return None
