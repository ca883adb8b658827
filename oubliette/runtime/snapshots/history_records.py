"""Questions about the snapshots of a session, and their answers."""

from __future__ import annotations

from typing import Literal

import msgspec

from oubliette.runtime.snapshots.snapshot_names import DiffRange, NamedSnapshot, Point


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """A file that differs between two states of a workspace."""

    path: str
    status: Literal["added", "deleted", "modified", "type_changed"]
    insertions: int | None
    """Lines; None: the file is binary."""
    deletions: int | None
    old_mode: str | None = None
    """Mode as git has it: 100644, 100755, 120000 is a link; None: it was not there."""
    new_mode: str | None = None
    old_blob: str = ""
    """Name of its content; empty: it was not there."""
    new_blob: str = ""


class DiffQuestion(msgspec.Struct, frozen=True, kw_only=True, tag="diff"):
    """Question for the changes between two snapshots of a session."""

    session_id: str
    turn: int | None = None
    from_turn: Point | None = None
    to_turn: Point | None = None
    between: DiffRange | None = None
    """The two states, where an earlier answer has them; then turns do not count."""
    paths: tuple[str, ...] = ()
    """Files and folders; empty: all."""
    ignored: bool = False
    """Whether files that `.gitignore` names are wanted too."""
    listed: bool = True
    """Whether the files are wanted."""
    patch: bool = False
    """Whether the text of the patch is wanted."""
    offset: int = 0
    """Byte of the patch at which the piece begins."""
    most: int = 0
    """Maximum bytes of the piece."""


class DiffAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="diff"):
    """Answer to a `DiffQuestion`."""

    between: DiffRange | None
    """None: the session has no snapshot, as its workspace always was empty."""
    changes: tuple[FileChange, ...] = ()
    patch: bytes = b""
    more: bool = False
    """Whether the patch goes on after this piece."""
    left_out: dict[str, str] = {}
    """Some files that have come or changed, but no snapshot has their content; with the reasons."""
    left_out_count: int = 0


class LogQuestion(msgspec.Struct, frozen=True, kw_only=True, tag="log"):
    """Question for the snapshots of a session, and the changes of some of its turns."""

    session_id: str
    turns: tuple[int, ...] = ()


class TurnChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Size of the changes of a turn."""

    turn: int
    files: int
    insertions: int | None
    """Lines; None: it takes too long to count them."""
    deletions: int | None


class LogAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="log"):
    """Answer to a `LogQuestion`."""

    snapshots: tuple[NamedSnapshot, ...] = ()
    """In the order of turns."""
    changes: tuple[TurnChanges, ...] = ()
    """Turns without a snapshot at their end are missing."""


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a workspace that no snapshot has."""

    tree: str
    """Name of its tree, which a user repeats to consent to the loss."""
    count: int = 0
    shown: dict[str, str] = {}
    """Some of the paths, and the reasons."""
    named: tuple[str, ...] | None = None
    """Objects that the refs and logs of its repository of git name; None: they are not known, as it
    has several repositories, or too many objects are named."""


class ForkQuestion(msgspec.Struct, frozen=True, kw_only=True, tag="fork"):
    """Question for the snapshot of a session that a fork begins with."""

    session_id: str
    point: Point | None = None
    """None: the newest."""
    before_turn: int | None = None
    """Turn that runs, whose snapshots are not meant without a point."""


class ForkAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="fork"):
    """Answer to a `ForkQuestion`."""

    snapshot: NamedSnapshot | None
    """None: the session has none, as its workspace always was empty."""


class ExportQuestion(msgspec.Struct, frozen=True, kw_only=True, tag="export"):
    """Request for a file with the changes or the snapshots of a session, and its first piece."""

    format: Literal["patch", "bundle"]
    range: DiffQuestion
    """The session, and of a patch the two states."""
    most: int
    """Maximum bytes of a piece."""


class PieceQuestion(msgspec.Struct, frozen=True, kw_only=True, tag="piece"):
    """Request for a further piece of such a file."""

    file: str
    """Its id, 32 hexadecimal digits."""
    offset: int
    most: int


class PieceAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="piece"):
    """A piece of an exported file."""

    file: str
    size: int
    """Size of the whole file."""
    sha256: str
    data: bytes
    between: DiffRange | None = None
    """Of a patch, the two states."""
    left_out: dict[str, str] = {}
    """Some files that a patch should have, but no snapshot has their content; with the reasons."""
    left_out_count: int = 0


class StatesQuestion(msgspec.Struct, frozen=True, kw_only=True, tag="states"):
    """Question for the states of a workspace, in their order, up to a snapshot of a session."""

    session_id: str
    upto: Point | None = None
    """The last one; None: the newest snapshot of the session."""


class UnstoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a workspace whose content no snapshot has: a large file, or an unreadable one."""

    path: bytes
    """A folder stands for all that is in it."""
    reason: str
    size: int | None = None
    """None: it could not be read."""
    sha256: str = ""


class WorkspaceState(msgspec.Struct, frozen=True, kw_only=True):
    """A state of a workspace, of whichever session."""

    commit: str
    tree: str
    committed_at: float
    """Second since 1970."""
    session_id: str
    """Session whose snapshot was the first to have it."""
    turn: int
    moment: str
    unstored: tuple[UnstoredFile, ...] = ()
    refused: tuple[bytes, ...] = ()
    """Paths with a name that git refuses in a checkout; of the last state alone."""


class StatesAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="states"):
    """Answer to a `StatesQuestion`."""

    name: str | None = None
    """Name of the snapshot that was asked for; None: the session has none."""
    states: tuple[WorkspaceState, ...] = ()
    """Oldest first; the last one is that of the snapshot."""


HistoryQuestion = (
    DiffQuestion | LogQuestion | ForkQuestion | ExportQuestion | PieceQuestion | StatesQuestion
)
HistoryAnswer = DiffAnswer | LogAnswer | ForkAnswer | PieceAnswer | StatesAnswer
