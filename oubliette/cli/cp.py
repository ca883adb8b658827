"""Command `oubliette cp`: files and folders to the workspace of a session, and back."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import Format, Home, Output, note, print_json
from oubliette.errors import (
    Forbidden,
    InvalidParameter,
    NotFound,
    OublietteError,
    RuntimeFailure,
)
from oubliette.user_paths import absolute

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from oubliette.api.files.records import CopiedFiles
    from oubliette.api.files.workspace_files import WorkspaceFiles

REMOTE: Final = re.compile(r"([A-Za-z0-9_-]+):(.*)", re.DOTALL)
SKIPPED_SHOWN: Final = 20  # paths that were skipped
UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")


class CopySide(NamedTuple):
    """One side of a copy: a path of a session's workspace, or of this machine."""

    session: str | None
    path: str


def place_of(given: str) -> CopySide:
    """Return the place that a user means; `./a:b` is a path of this machine."""
    found = REMOTE.fullmatch(given)
    return CopySide(None, given) if found is None else CopySide(found[1], found[2])


def cp(
    source: Annotated[str, typer.Argument(help="File or folder, or SESSION:PATH.")],
    target: Annotated[str, typer.Argument(help="File or folder, or SESSION:PATH.")],
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Copy a file or folder of this machine to the workspace of a session, or back.

    SESSION:PATH is relative to the workspace. If the target is a folder, the copy is made in it.
    Links, pipes and devices in a folder are skipped. The session may be working or have ended.
    """
    import asyncio

    begin, end = place_of(source), place_of(target)
    if (begin.session is None) == (end.session is None):
        raise InvalidParameter(
            "one of the two must be SESSION:PATH, and the other a path of this machine",
            field="source",
            hint="./a:b is a path of this machine",
        )
    session = whole_id(home, "session", begin.session or end.session or "")
    try:
        if begin.session is None:
            copied = asyncio.run(
                _upload(home, session, absolute(begin.path, "the source"), end.path)
            )
        else:
            place = Path(end.path)
            if place.is_dir():
                place /= begin.path.rstrip("/").rpartition("/")[2] or session
            copied = asyncio.run(_download(home, session, begin.path, place))
    except OSError as error:  # of this machine's disk
        if isinstance(error, OublietteError):
            raise
        raise _failure(error) from error
    if output is Format.json:
        print_json({"files": copied.files, "bytes": copied.bytes, "skipped": copied.skipped})
        return
    for path in copied.skipped[:SKIPPED_SHOWN]:
        note(f"skipped, as it is a link or no regular file: {path}")
    if len(copied.skipped) > SKIPPED_SHOWN:
        note(f"skipped {len(copied.skipped) - SKIPPED_SHOWN} more.")
    files = "1 file" if copied.files == 1 else f"{copied.files} files"
    note(f"{files}, {shown_size(copied.bytes)}, copied.")


def _failure(error: OSError) -> OublietteError:
    text = f"{error.filename or 'the copy'}: {error.strerror or error}"
    if isinstance(error, FileNotFoundError):
        return NotFound(text)
    return Forbidden(text) if isinstance(error, PermissionError) else RuntimeFailure(text)


def shown_size(size: int) -> str:
    """A number of bytes as users read it."""
    if size == 1:
        return "1 byte"
    value, unit = float(size), 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{size} {UNITS[0]}" if unit == 0 else f"{value:.1f} {UNITS[unit]}"


async def _upload(home: str | None, session_id: str, source: Path, path: str) -> CopiedFiles:
    files = await _files_of(home, session_id)
    with _progress() as report:
        path = await _target_in_workspace(files, path, source.name)
        return await files.upload(source, path, on_file=report)


async def _download(home: str | None, session_id: str, path: str, target: Path) -> CopiedFiles:
    files = await _files_of(home, session_id)
    with _progress() as report:
        return await files.download(path, target, on_file=report)


async def _files_of(home: str | None, session_id: str) -> WorkspaceFiles:
    from oubliette.api.files.workspace_files import WorkspaceFiles

    calls = _HomeCalls(home)
    session = await calls.call("session_get", {"session_id": session_id})
    return WorkspaceFiles(calls, session["project_id"], session["workspace_id"])


async def _target_in_workspace(files: WorkspaceFiles, path: str, name: str) -> str:
    """The path of the copy: in the folder, if there is one, else the path itself."""
    try:
        kind = await files.kind(path)
    except NotFound:
        kind = None
    if kind == "folder":
        return f"{path.rstrip('/')}/{name}" if path.rstrip("/") else name
    if path.endswith("/"):
        raise NotFound(f"{path} is no folder of the workspace", hint="leave out the / to make it")
    return path


@contextlib.contextmanager
def _progress() -> Generator[Callable[[str, int], None] | None]:
    """Yield what shows each file on a terminal; None elsewhere: there may be thousands."""
    if not sys.stderr.isatty():
        yield None
        return
    from oubliette.cli.terminal import progress

    with progress.shown("copying") as report:
        yield lambda path, size: report(f"{path} ({shown_size(size)})")


class _HomeCalls:
    """Calls of the home's server, for what calls tools on an event loop."""

    def __init__(self, home: str | None) -> None:
        from oubliette.cli.client.tools import HomeServer
        from oubliette.config.loader import find_home

        self._server = HomeServer(find_home(home))

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        on_progress: Callable[[str], object] | None = None,
    ) -> dict[str, Any]:
        from anyio import to_thread

        del on_progress
        return await to_thread.run_sync(
            lambda: self._server.call(tool, arguments, timeout or 60.0), abandon_on_cancel=True
        )
