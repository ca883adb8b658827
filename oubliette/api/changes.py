"""Changes of an agent in its workspace, and forks of its session, as programs get them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.contract.changes import Diff, TurnLog
from oubliette.errors import LimitExceeded, RuntimeFailure

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.api.context import ClientContext

CALL_SECONDS: Final = 300.0
"""Time for one answer, for which the server may have to store a large workspace first."""


class ExportInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was exported."""

    session_id: str
    format: str
    """`patch` or `bundle`."""
    size: int
    """Bytes."""
    sha256: str
    """In hexadecimal."""
    left_out_count: int = 0
    """Files that a patch lacks, as no snapshot has their content."""
    left_out: dict[str, str] = {}
    """Some of them, with the reasons."""
    ignored_count: int = 0
    """Files that a patch lacks, as `.gitignore` names them."""


async def write_export(shared: ClientContext, arguments: dict[str, Any], file: Path) -> ExportInfo:
    """Write the file that `session_export` returns; if it fails, there is none.

    Raises:
        FileExistsError: there is a file of this name.
        OSError: it cannot be written.
        RuntimeFailure: what came is not the file that the server described.
        OublietteError: the tool failed.
    """
    page = first = await shared.call("session_export", arguments, timeout=CALL_SECONDS)
    digest = hashlib.sha256()
    opened = await asyncio.to_thread(file.open, "xb")
    whole = False
    try:
        with opened:
            while True:
                data = base64.b64decode(page["data"])
                digest.update(data)
                await asyncio.to_thread(opened.write, data)
                if page["next_cursor"] is None:
                    break
                following = {**arguments, "cursor": page["next_cursor"]}
                page = await shared.call("session_export", following, timeout=CALL_SECONDS)
        whole = digest.hexdigest() == first["sha256"]
    finally:
        if not whole:  # not in a thread, as the task may be cancelled
            os.unlink(file)  # noqa: PTH108
    if not whole:
        raise RuntimeFailure("the exported file did not come as the server made it")
    return msgspec.convert(first, ExportInfo)


async def read_log(shared: ClientContext, session_id: str) -> list[TurnLog]:
    """Return the turns of a session with their snapshots, oldest first.

    Raises:
        OublietteError: the tool failed.
    """
    found: list[Any] = []
    cursor: str | None = None
    while True:
        page = await shared.call(
            "session_log", {"session_id": session_id, "cursor": cursor}, timeout=CALL_SECONDS
        )
        found += page["turns"]
        cursor = page["next_cursor"]
        if cursor is None:
            return msgspec.convert(found, list[TurnLog])


async def read_diff(
    shared: ClientContext, arguments: dict[str, Any], *, patch: bool, max_bytes: int
) -> Diff:
    """Return all pages of a diff as one.

    Raises:
        LimitExceeded: the patch has more than `max_bytes` characters.
        OublietteError: the tool failed.
    """
    first, changes = await _pages(shared, {**arguments, "format": "stat"}, "changes", 0)
    text = None
    if patch:
        same = arguments
        if arguments.get("turn") is None and first["to_snapshot"] is not None:
            same = {**arguments, "to_turn": first["to_snapshot"]}  # no later one
        _, pieces = await _pages(shared, {**same, "format": "patch"}, "patch", max_bytes)
        text = "".join(pieces)
    return msgspec.convert({**first, "changes": changes, "patch": text}, Diff)


async def _pages(
    shared: ClientContext, arguments: dict[str, Any], name: str, max_bytes: int
) -> tuple[dict[str, Any], list[Any]]:
    """Return the first page, and what all pages have below `name`."""
    page = first = await shared.call("session_diff", arguments, timeout=CALL_SECONDS)
    found: list[Any] = [*first[name]]
    while page["next_cursor"] is not None:
        page = await shared.call(
            "session_diff", {**arguments, "cursor": page["next_cursor"]}, timeout=CALL_SECONDS
        )
        found += page[name]
        if 0 < max_bytes < len(found):
            raise LimitExceeded(
                f"the patch is larger than max_bytes ({max_bytes})",
                hint="raise max_bytes, select paths, or leave the text out with patch=False",
            )
    return first, found


MADE_AT_ONCE: Final = 4
"""Forks that the server makes at a time."""


class ForkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Beginning of a session that is a fork."""

    forked_from: str
    """Id of the other session."""
    forked_at: str | None = None
    """Snapshot with whose files it began; None: there were none."""
    forked_at_turn: int = 0
    """Last turn of the conversation that it knows; 0: none."""
    conversation: str | None = None
    """`native`: its agent knows it; `transcript`: a record of it came before the prompt."""
    missing_count: int = 0
    """Files that are not as they were, as no snapshot has their content."""
    missing: dict[str, str] = {}
    """Some of them, and what is known."""


async def call_fork(shared: ClientContext, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Have a session forked; return the entry of each fork, with all that holds for it.

    It is not given up half way: those that were started are known to the program, which ends them
    with itself.
    """
    seconds = CALL_SECONDS * -(-int(arguments["count"]) // MADE_AT_ONCE)

    async def forked() -> list[dict[str, Any]]:
        answer = await shared.call("session_fork", arguments, timeout=seconds)
        entries = [{**answer, **each} for each in answer["sessions"]]
        for each in entries:
            if each["error"] is None:
                shared.started.setdefault(each["session_id"])
        return entries

    return await asyncio.shield(shared.start_session(forked()))
