"""Tape, the recordings of a cassette and their file: JSON lines, one for each exchange."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = "oubliette-cassette"
VERSION: Final = 1


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One request and its answer."""

    asks: dict[str, Any]
    """The parts of the request that identify it: see `matching`."""
    status: int
    """HTTP status of the answer."""
    headers: dict[str, str] = {}
    pieces: list[str] = []
    """Body of the answer, in the pieces in which it arrived."""


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    version: int


class Tape:
    """Recordings in their order; each is replayed once."""

    def __init__(self, recordings: list[Recording] | None = None) -> None:
        self.recordings: list[Recording] = list(recordings or ())
        self._taken: defaultdict[str, int] = defaultdict(int)

    def add(self, recording: Recording) -> None:
        """Add a recording at the end."""
        self.recordings.append(recording)

    def take(self, asks: dict[str, Any]) -> Recording | None:
        """Return the first recording of this request that was not taken yet; None without one."""
        key = _key(asks)
        matching = [each for each in self.recordings if _key(each.asks) == key]
        if self._taken[key] >= len(matching):
            return None
        self._taken[key] += 1
        return matching[self._taken[key] - 1]

    def times(self, asks: dict[str, Any]) -> int:
        """Return how often this request was recorded."""
        key = _key(asks)
        return sum(_key(each.asks) == key for each in self.recordings)

    @property
    def left(self) -> int:
        """Number of recordings that were not taken."""
        return len(self.recordings) - sum(self._taken.values())

    def write(self, path: Path) -> None:
        """Write the file at once; its folder is made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [msgspec.json.encode(_Header(format=FORMAT, version=VERSION))]
        lines += map(msgspec.json.encode, self.recordings)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        partial.write_bytes(b"\n".join(lines) + b"\n")
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> Tape:
        """Read a file.

        Raises:
            InvalidParameter: it is no cassette of this version; names the line.
        """
        first, *rest = path.read_bytes().splitlines() or [b""]
        try:
            header = msgspec.json.decode(first, type=_Header)
        except msgspec.DecodeError as error:
            raise _unreadable(path, 1, str(error)) from error
        if (header.format, header.version) != (FORMAT, VERSION):
            detail = f"{header.format} {header.version}, and this release reads {VERSION}"
            raise _unreadable(path, 1, detail)
        recordings: list[Recording] = []
        for number, line in enumerate(rest, 2):
            try:
                recordings.append(msgspec.json.decode(line, type=Recording))
            except msgspec.DecodeError as error:
                raise _unreadable(path, number, str(error)) from error
        return cls(recordings)


def _key(asks: dict[str, Any]) -> str:
    return json.dumps(asks, sort_keys=True)


def _unreadable(path: Path, number: int, detail: str) -> InvalidParameter:
    return InvalidParameter(
        f"cassette: {path}, line {number}: {detail}",
        field="cassette",
        hint="record it again with --oubliette-record=all",
    )
