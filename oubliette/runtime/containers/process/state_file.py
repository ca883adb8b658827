"""State file of a container of the process runtime, beside its runtime folder.

`<base>/<8 hex>/` is what the container sees as `/mcp`; beside it, invisible inside, are
`<8 hex>.json` (this record), `.log`, `.status` (bubblewrap's, with the exit code) and `.spool`. The
record is written before anything is made and removed last, so nothing is ever left unrecorded.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import msgspec

from oubliette.runtime.containers import host_paths, labels
from oubliette.runtime.containers.base import ContainerSpec
from oubliette.runtime.containers.process.procfs import HostProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class StoredContainer(msgspec.Struct, frozen=True, kw_only=True):
    """One container of the process runtime."""

    spec: ContainerSpec
    process: HostProcess | None = None
    """Process 1 of the sandbox (best-effort: the guest), once started."""
    monitor: HostProcess | None = None
    """The bwrap outside that waits for it."""
    keeper: HostProcess | None = None
    """The `network_keeper` of its own network."""
    started_at: float | None = None
    exit_code: int | None = None


_decoder = labels.decoder(StoredContainer)


def save(record: StoredContainer) -> None:
    """Write it atomically."""
    host_paths.write_private(
        host_paths.beside(record.spec.runtime_dir, "json"), labels.encoder.encode(record)
    )


def load_all(base: Path) -> Iterator[StoredContainer]:
    """Return every readable record; an unreadable one is another release's and is left alone."""
    for path in sorted(base.glob("*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            yield _decoder.decode(path.read_bytes())


def tail(path: Path, lines: int, limit: int = 1 << 20) -> tuple[str, bool]:
    """Return the last `lines` lines of a file, at most `limit` bytes; and whether it was cut."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return "", False
    with os.fdopen(fd, "rb") as file:
        size = os.fstat(fd).st_size
        file.seek(max(0, size - limit))
        text = file.read(limit).decode("utf-8", "replace")
    kept = text.splitlines(keepends=True)[-lines:] if lines > 0 else []
    result = "".join(kept)
    return result, size > limit or len(result) < len(text)
