"""Messages to the SnapshotsActor."""

from __future__ import annotations

from typing import Final

import msgspec

from oubliette.kit import Message, Reply
from oubliette.runtime.repositories.served_view import ServedSnapshots
from oubliette.runtime.snapshots.history_records import HistoryAnswer, HistoryQuestion, Losses
from oubliette.runtime.snapshots.snapshot_names import Point
from oubliette.runtime.snapshots.snapshot_records import (
    Restored,
    Snapshot,
    SnapshotCopy,
    SnapshotLabel,
)

SNAPSHOTS: Final = "snapshots"
"""Name of the actor."""
QUEUED: Final = 3
"""Multiple of `snapshots.seconds` for which files of another node are waited for: what was begun
for the same workspace ends first."""


class TakeSnapshot(Message, Reply[Snapshot]):
    """To the SnapshotsActor: take a snapshot of a workspace; the answer comes when it is stored."""

    project_id: str
    workspace_id: str
    label: SnapshotLabel
    unless_stored: bool = False
    """Whether none is taken if the end of the turn is stored already."""


class AskHistory(Message, Reply[HistoryAnswer]):
    """To the SnapshotsActor: a question about the snapshots of a workspace.

    It is answered after what was requested before it: a turn that has ended has its snapshot.
    """

    project_id: str
    workspace_id: str
    question: HistoryQuestion


class TakeCheckpoint(Message, Reply[Snapshot]):
    """To the SnapshotsActor: take a snapshot by request; refused if its name is used already."""

    project_id: str
    workspace_id: str
    label: SnapshotLabel


class WorkspaceRestored(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to RestoreWorkspace."""

    restored: str
    """Name of the snapshot whose files are there now."""
    kept_as: str | None
    """Name of the snapshot that has what was there before; None: there was nothing."""
    outcome: Restored


class RestoreWorkspace(Message, Reply[WorkspaceRestored]):
    """To the SnapshotsActor: make a workspace equal to a snapshot, once no turn runs in it.

    What is there is stored before. Refused with `Conflict` while a turn runs or waits, and if
    something would be lost that the snapshot does not contain, unless `discard` names its tree.
    """

    project_id: str
    workspace_id: str
    label: SnapshotLabel
    """Of what is there now."""
    point: Point | None = None
    checkpoint: str | None = None
    """Name of a checkpoint, instead of a point."""
    discard: str | None = None


class CopySnapshot(Message, Reply[Restored]):
    """To the SnapshotsActor: make another folder of the server's equal to a snapshot."""

    project_id: str
    workspace_id: str
    """Workspace of the snapshot."""
    session_id: str
    name: str
    """Of the snapshot."""
    copy: SnapshotCopy


class StoreLast(Message, Reply[Losses]):
    """To the SnapshotsActor: store a workspace that is going to be deleted.

    The answer has what would be lost with it; a workspace that cannot be stored is lost as a whole.
    """

    project_id: str
    workspace_id: str
    label: SnapshotLabel


class BringFiles(Message, Reply[None]):
    """To the SnapshotsActor: bring the files of a workspace that another node had before."""

    project_id: str
    workspace_id: str


class KeepSessionFiles(Message):
    """To the SnapshotsActor: store the files in which an agent keeps its conversation."""

    project_id: str
    session_id: str
    paths: tuple[str, ...]
    label: SnapshotLabel


class BringSessionFiles(Message, Reply[None]):
    """To the SnapshotsActor: bring these files of a session that was on another node before."""

    project_id: str
    session_id: str
    paths: tuple[str, ...]
    expected: bool = False
    """Whether its agent has a conversation, and so there must be some."""


class ListServed(Message, Reply[tuple[ServedSnapshots, ...]]):
    """To the SnapshotsActor: the snapshots of all workspaces of a project, as they are now.

    Those of deleted workspaces are among them. The files of agents' sessions are not.
    """

    project_id: str


class ForgetSessionFiles(Message):
    """To the SnapshotsActor: a session is removed, and so are the copies of its agent's files."""

    project_id: str
    session_id: str


class SendCopy(Message):
    """To the SnapshotsActor: the copy of a workspace is to be elsewhere now."""

    project_id: str
    workspace_id: str


class ForgetCopies(Message):
    """To the SnapshotsActor: a project is deleted, so its copies elsewhere are to be removed."""

    project_id: str


class CloseSnapshots(Message, Reply[None]):
    """To the SnapshotsActor: a project is deleted or moves; answered when nothing is under way."""

    project_id: str
