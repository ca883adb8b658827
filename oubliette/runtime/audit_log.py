"""Audit log: one line for each call of a tool (OWASP ASVS V7).

JSON lines in `<home>/audit.jsonl`, 0600, rotated by size. A line has the caller, the tool, the
object and the outcome; never arguments, results or keys. A thread writes, so that a slow disk
blocks no call: if a server is killed, the lines of its last moments may be missing.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import threading
from collections import deque
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE_NAME: Final = "audit.jsonl"
MAX_LINE: Final = 4096  # bytes; ours are a tenth of that
_MAX_FIELD: Final = 64  # characters of a field of a longer line; a character has six bytes at most
GATHER: Final = 0.02  # seconds in which entries are gathered for one write
_MAX_CHUNK: Final = 64 * 1024  # bytes of one write

_log = structlog.get_logger("oubliette.audit")


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Entry for one call of a tool."""

    ts: float
    """Wall-clock second of the call's end."""
    tool: str
    transport: str
    """`http`, `socket` (an agent) or `control` (the command line)."""
    token_id: str
    principal: str
    session_id: str | None = None
    """The session whose link the call came from."""
    target_session_id: str | None = None
    """The session that the call is about."""
    project_id: str | None = None
    """The project that the call is about, from the record; if it was refused, the id as given."""
    outcome: str = "ok"
    """`ok`, or the code of the error."""
    seconds: float = 0.0
    """Duration of the call."""


class AuditLog:
    """Writer of the audit log; takes entries from any thread, and `close` writes the rest."""

    def __init__(self, home: Path, *, max_bytes: int, files: int) -> None:
        self._handler = _Lines(home / FILE_NAME, max_bytes, files)
        self._most = max(1, min(_MAX_CHUNK, max_bytes // 4))
        self._entries: deque[AuditEntry] = deque()
        self._news = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oubliette-audit", daemon=True)
        self._thread.start()

    def write(self, entry: AuditEntry) -> None:
        """Add an entry. Never blocks and never raises."""
        self._entries.append(entry)
        if not self._news.is_set():
            self._news.set()

    def close(self) -> None:
        """Write the remaining entries and close the file. Blocks."""
        self._ending.set()
        self._news.set()
        self._thread.join()
        self._handler.close()

    def _run(self) -> None:
        ending = False
        while not ending:
            self._news.wait()
            self._news.clear()  # first: an entry added from here on sets it again
            # One wake-up and one write for all calls of a moment, not for each.
            ending = self._ending.wait(GATHER)
            self._write_all()

    def _write_all(self) -> None:
        lines: list[str] = []
        size = 0
        while self._entries:
            line = _line(self._entries.popleft())
            if lines and size + len(line) > self._most:
                self._emit(lines)
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        if lines:
            self._emit(lines)

    def _emit(self, lines: list[str]) -> None:
        text = "\n".join(lines)
        self._handler.handle(logging.LogRecord("audit", logging.INFO, "", 0, text, None, None))


def _line(entry: AuditEntry) -> str:
    """The line of an entry: long texts are cut, so that no caller turns the files over."""
    line = msgspec.json.encode(entry)
    if len(line) > MAX_LINE:
        cut = {
            name: text[:_MAX_FIELD]
            for name, text in msgspec.structs.asdict(entry).items()
            if isinstance(text, str)
        }
        line = msgspec.json.encode(msgspec.structs.replace(entry, **cut))
    return line.decode()


class _Lines(logging.handlers.RotatingFileHandler):
    """Handler that rotates `audit.jsonl` to `audit.jsonl.1` and so on, and logs failed writes."""

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=files, encoding="utf-8")
        self.setFormatter(logging.Formatter("%(message)s"))
        self.lost = 0

    def _open(self) -> IO[str]:  # type: ignore[override]
        def private(path: str, flags: int) -> int:
            return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

        return open(self.baseFilename, "a", encoding="utf-8", opener=private)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        before = self.lost.bit_length()
        self.lost += record.msg.count("\n") + 1
        if self.lost.bit_length() != before:  # at each power of two: a full disk may get room again
            _log.error("audit lines are lost", lost=self.lost, last=record.msg, exc_info=True)


def read(home: Path) -> Iterator[AuditEntry]:
    """The stored entries, oldest first. Malformed lines (cut by a crash) are skipped."""
    for path in reversed(_files(home)):
        try:
            file = path.open("rb")
        except FileNotFoundError:  # rotated away in between
            continue
        with file:
            for line in file:
                try:
                    yield _entry(line)
                except msgspec.MsgspecError:
                    continue


def _entry(line: bytes) -> AuditEntry:
    fields = msgspec.json.decode(line, type=dict[str, Any])
    if "door" in fields:  # the name of this field in lines of release 0.1.0
        fields["transport"] = fields.pop("door")
    return msgspec.convert(fields, AuditEntry)


def _files(home: Path) -> list[Path]:
    """The files of the log, newest first."""
    rotated = [
        (int(path.suffix[1:]), path)
        for path in home.glob(f"{FILE_NAME}.*")
        if path.suffix[1:].isdecimal()
    ]
    return [home / FILE_NAME, *(path for _, path in sorted(rotated))]
