"""ServedView, the bare repository of a project that git's clients fetch from.

    repositories/<project-id>/served.git       refs alone; the objects stay where they are

It borrows the objects of the project's repository and of all its workspaces' snapshots by
`objects/info/alternates`, so nothing is copied. Each of its files is replaced as a whole: clients
that are being served go on with what they have opened.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.runtime.snapshots.git_program import make_repository
from oubliette.runtime.snapshots.ref_files import PACKED, is_commit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

SERVED: Final = "served.git"
SHALLOW: Final = "shallow"
UNBORN: Final = "main"
"""Branch that is HEAD where the project has no repository."""
_SNAPSHOTS: Final = "refs/oubliette/"
_SHARED: Final = "refs/oubliette/workspace/"
"""Refs that each workspace has for itself: of what it was when it was deleted."""
_REMOTE: Final = "refs/remotes/origin/"
_HEADS: Final = "refs/heads/"
_SHOWN: Final = (_HEADS, _REMOTE, "refs/tags/")


class ServedSnapshots(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshots of one workspace, as they are served."""

    workspace_id: str
    folder: str
    """Its repository."""
    refs: dict[str, str]
    """Name → commit."""


def branches_of(refs: Mapping[str, str]) -> dict[str, str]:
    """The refs under which a project's repository is served.

    Branches are those of the repository that it was cloned from; one of the server's own, which
    has what was merged into it, comes before it. So a plain `git clone` has them all.
    """
    found = {name: commit for name, commit in refs.items() if name.startswith(_SHOWN)}
    for name, commit in refs.items():
        branch = name.removeprefix(_REMOTE)
        if branch not in {name, "HEAD"}:
            found.setdefault(f"{_HEADS}{branch}", commit)
    found.pop(f"{_REMOTE}HEAD", None)
    return found


def of_sessions(refs: Mapping[str, str], sessions: Collection[str]) -> dict[str, str]:
    """The refs of snapshots without those of sessions that were removed.

    Args:
        refs: Name → commit.
        sessions: Ids of the sessions that there are.
    """
    kept: dict[str, str] = {}
    for name, commit in refs.items():
        owner = name.removeprefix(_SNAPSHOTS).partition("/")[0]
        if name.startswith(_SHARED) or owner in sessions:
            kept[name] = commit
    return kept


class ServedView:
    """The served repository of one project. All methods block; its owner calls one at a time.

    Args:
        folder: Folder of the project's repositories, which need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / SERVED

    def write(
        self,
        repository: Path | None,
        refs: Mapping[str, str],
        head: str | None,
        snapshots: Sequence[ServedSnapshots],
    ) -> None:
        """Make it show what there is now.

        Args:
            repository: The project's repository; None: it has none.
            refs: Of that, as they are served.
            head: Its HEAD, a branch or a commit; None: it has none.
            snapshots: Of all workspaces.
        """
        make_repository(self.folder, durable=False)
        shown = dict(refs)
        for each in snapshots:
            prefix = f"refs/oubliette/workspace-{each.workspace_id}/"
            for name, commit in each.refs.items():
                shown[name.replace(_SHARED, prefix, 1)] = commit
        own = [] if repository is None else [repository]
        folders = [*map(str, own), *(each.folder for each in snapshots)]
        # Objects come before the refs to them
        self._replace("objects/info/alternates", "".join(f"{each}/objects\n" for each in folders))
        shallow = None if repository is None else _text(repository / SHALLOW)
        if shallow is not None:
            self._replace(SHALLOW, shallow)
        else:
            (self.folder / SHALLOW).unlink(missing_ok=True)
        self._replace(PACKED, "".join(f"{shown[name]} {name}\n" for name in sorted(shown)))
        detached = head is not None and f"{_HEADS}{head}" not in shown and is_commit(head)
        self._replace("HEAD", f"{head}\n" if detached else f"ref: {_HEADS}{head or UNBORN}\n")

    def _replace(self, name: str, text: str) -> None:
        file = self.folder / name
        if _text(file) == text:
            return
        new = file.with_name(f"{file.name}.{secrets.token_hex(4)}.new")
        try:
            new.write_text(text, "utf-8", "surrogateescape")
            new.replace(file)
        finally:
            new.unlink(missing_ok=True)


def _text(file: Path) -> str | None:
    try:
        return file.read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None
