"""SnapshotExports, files with the changes or the snapshots of a session, given out by pieces.

A file stays for a while, so that its pieces are those of one file, and not of later snapshots.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from typing import TYPE_CHECKING, Final

from oubliette.errors import InvalidParameter, LimitExceeded, NotFound
from oubliette.runtime.long_work import in_own_thread
from oubliette.runtime.snapshots.history_records import PieceAnswer

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.snapshots.git_program import GitProgram
    from oubliette.runtime.snapshots.history import SnapshotHistory
    from oubliette.runtime.snapshots.history_records import ExportQuestion, PieceQuestion

PREFIX: Final = "export-"
UNFINISHED: Final = ".part"
"""End of the name of a file that is being made."""
KEPT_SECONDS: Final = 1800.0
"""Time for which a file stays after it was made."""
MAX_BYTES: Final = 1 << 30
MAX_FILES: Final = 4
"""Files of one project; for another one the oldest goes. As many are made at a time."""
_ID: Final = re.compile(r"[0-9a-f]{32}")


class SnapshotExports:
    """Exported files of one repository."""

    def __init__(
        self, repository: Path, git: GitProgram, history: SnapshotHistory, seconds: float
    ) -> None:
        self._repository = repository
        self._git = git
        self._history = history
        self._seconds = seconds

    async def export(self, question: ExportQuestion) -> PieceAnswer:
        """Make a file and return its first piece.

        Raises:
            NotFound: there is no such snapshot.
            InvalidParameter: the question cannot be understood.
            LimitExceeded: the file would be larger than 1 GiB, or too many are being made.
            RuntimeFailure: git failed.
            DeadlineExceeded: it takes too long.
        """
        asked = question.range
        snapshots = await self._history.snapshots(asked.session_id)
        between, left_out = None, dict[str, str]()
        if question.format == "bundle":
            if not snapshots:
                raise NotFound(f"session {asked.session_id} has no snapshots")
            refs = f"--glob=refs/oubliette/{asked.session_id}/*"
            command = ("bundle", "create", "-q", "-", refs)
        else:
            between = await self._history.between(asked)
            if between is None:
                return _empty()
            left_out = await self._history.left_out(asked, between)
            command = self._history.patch_command(between, asked.paths)
        await asyncio.to_thread(self._make_room)
        name = secrets.token_hex(16)
        file = self._repository / f"{PREFIX}{name}"
        part = file.with_suffix(UNFINISHED)
        try:
            await self._git.write_file(
                self._repository, *command, file=part, most=MAX_BYTES, seconds=self._seconds
            )
            await asyncio.to_thread(part.rename, file)
        except BaseException as error:
            await asyncio.to_thread(part.unlink, missing_ok=True)
            if isinstance(error, LimitExceeded):
                raise LimitExceeded(
                    f"the {question.format} would be larger than {MAX_BYTES} bytes",
                    hint="select paths or fewer turns",
                ) from error
            raise
        size, digest = await in_own_thread(_size_and_digest, file)
        return PieceAnswer(
            file=name,
            size=size,
            sha256=digest,
            data=await asyncio.to_thread(_read, file, 0, question.most),
            between=between,
            left_out=dict(list(left_out.items())[:20]),
            left_out_count=len(left_out),
        )

    async def piece(self, question: PieceQuestion) -> PieceAnswer:
        """A further piece of a file.

        Raises:
            InvalidParameter: there never was such a file.
            NotFound: the file is not kept any more.
        """
        if not _ID.fullmatch(question.file):
            raise InvalidParameter("cursor: give next_cursor of the previous piece", field="cursor")
        file = self._repository / f"{PREFIX}{question.file}"
        try:
            data = await asyncio.to_thread(_read, file, question.offset, question.most)
        except FileNotFoundError:
            raise NotFound(
                "the exported file is not kept any more",
                hint="begin again without a cursor, and read its pieces within half an hour",
            ) from None
        return PieceAnswer(file=question.file, size=0, sha256="", data=data)

    def _make_room(self) -> None:
        """Remove the oldest files of the project, whose workspaces have a repository each.

        Raises:
            LimitExceeded: too many are being made.
        """
        found = {each: _made_at(each) for each in self._repository.parent.glob(f"*/{PREFIX}*")}
        dead = time.time() - KEPT_SECONDS  # a part before that is of a server that was killed
        begun = [each for each in found if each.suffix == UNFINISHED and found[each] > dead]
        if len(begun) >= MAX_FILES:
            raise LimitExceeded(
                f"{MAX_FILES} files are being exported from this project already",
                hint="try again when one of them is done",
            )
        files = sorted(found.keys() - begun, key=lambda each: found[each])
        for each in files[: max(0, len(files) - MAX_FILES + 1)]:
            each.unlink(missing_ok=True)


def remove_old(repository: Path) -> None:
    """Remove the files that are not kept any more. Blocks."""
    before = time.time() - KEPT_SECONDS
    for each in repository.glob(f"{PREFIX}*"):
        if each.stat().st_mtime < before:
            each.unlink(missing_ok=True)


def _made_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # another export has just removed it
        return 0.0


def _size_and_digest(file: Path) -> tuple[int, str]:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        return opened.tell(), digest


def _read(file: Path, offset: int, most: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(offset)
        return opened.read(most)


def _empty() -> PieceAnswer:
    """The whole of a patch that changes nothing."""
    digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    return PieceAnswer(file="", size=0, sha256=digest, data=b"")
