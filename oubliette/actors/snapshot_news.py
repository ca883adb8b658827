"""SnapshotNews, what there is to report about copies, until a session can put it into its log."""

from __future__ import annotations

from typing import Final

import msgspec

from oubliette.runtime.snapshots.snapshot_records import Snapshot

Key = tuple[str, str]
"""Project, and workspace or session files."""
HOME: Final = ".home"
"""End of the name of what has the files of a session's agent."""
NOTHING: Final = Snapshot(ref=None, changed=False)


def home_key(project_id: str, session_id: str) -> Key:
    return project_id, f"{session_id}{HOME}"


class SnapshotNews:
    """Files that came from other nodes, and failures, that no session has reported yet."""

    def __init__(self) -> None:
        self._news: dict[Key, Snapshot] = {}

    def keep(self, key: Key, snapshot: Snapshot) -> None:
        """Keep what is new in a snapshot that no session has asked for."""
        if snapshot.brought is not None or snapshot.warning:
            self._news[key] = snapshot

    def failed(self, key: Key, reason: str) -> None:
        """Keep the reason for which there is no copy."""
        found = self._news.get(key, NOTHING)
        self._news[key] = msgspec.structs.replace(found, warning=reason)

    def taken_with(self, key: Key, session_id: str, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot for a session with all that it can report; it is kept no longer."""
        of_workspace = self._news.pop(key, NOTHING)
        of_home = self._news.pop(home_key(key[0], session_id), NOTHING)
        return msgspec.structs.replace(
            snapshot,
            brought=snapshot.brought or of_workspace.brought,
            home=of_home.brought,
            warning=snapshot.warning or of_workspace.warning or of_home.warning,
        )

    def forget(self, project_id: str) -> None:
        for key in [key for key in self._news if key[0] == project_id]:
            del self._news[key]
