"""Files that a server exports by pieces, as commands write them."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, Final

from oubliette.cli.client.calls import call
from oubliette.errors import RuntimeFailure

if TYPE_CHECKING:
    from collections.abc import Mapping

SECONDS: Final = 300.0
"""Time for one piece, before which the server may have to store a large workspace."""


def write_exported(home: str | None, arguments: dict[str, Any], file: IO[bytes]) -> dict[str, Any]:
    """Write the file that `session_export` returns for these arguments, and check it.

    Returns:
        The first answer, without the piece.

    Raises:
        RuntimeFailure: what came is not the file that the server described.
        OublietteError: the tool failed.
    """
    import base64
    import hashlib

    page = first = call(home, "session_export", arguments, SECONDS)
    digest, size = hashlib.sha256(), 0
    while True:
        data = base64.b64decode(page["data"])
        digest.update(data)
        size += len(data)
        file.write(data)
        if page["next_cursor"] is None:
            break
        page = call(home, "session_export", {**arguments, "cursor": page["next_cursor"]}, SECONDS)
    if (size, digest.hexdigest()) != (first["size"], first["sha256"]):
        raise RuntimeFailure("the exported file did not come as the server made it")
    return {name: value for name, value in first.items() if name not in {"data", "next_cursor"}}


def left_out_note(answer: Mapping[str, Any]) -> str | None:
    """Return a sentence about files that the exported patch lacks; None: it has all."""
    parts: list[str] = []
    if answer["left_out_count"]:
        shown = "; ".join(f"{path}: {why}" for path, why in answer["left_out"].items())
        parts.append(f"{answer['left_out_count']} files are not in the patch: {shown}")
    if answer["ignored_count"]:
        count = answer["ignored_count"]
        parts.append(f"{count} that .gitignore names are not in the patch without --ignored")
    return "; ".join(parts) or None
