"""States of a workspace, one after the other, as its snapshots have them: what is merged.

Snapshots of all sessions in a workspace are one line of commits. Each has in its trailers which
session and turn was the first to have it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from oubliette.errors import RuntimeFailure
from oubliette.runtime.snapshots.history_records import StatesAnswer, UnstoredFile, WorkspaceState
from oubliette.runtime.snapshots.snapshot_names import at
from oubliette.runtime.snapshots.workspace.tree_reader import NO_CONTENT
from oubliette.runtime.snapshots.workspace.tree_table import (
    BELOW,
    MANIFEST,
    refused_path,
    without_content,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oubliette.runtime.snapshots.git_program import GitProgram
    from oubliette.runtime.snapshots.history import SnapshotHistory
    from oubliette.runtime.snapshots.history_records import StatesQuestion

_REST: Final = "refs/oubliette-rest"
_TRAILERS: Final = ("Session", "Turn", "Moment", "Name")
_FORMAT: Final = "%x00".join(
    ("%H", "%T", "%ct", *(f"%(trailers:key={each},valueonly,separator=%x2C)" for each in _TRAILERS))
)


async def states_up_to(
    repository: Path,
    git: GitProgram,
    history: SnapshotHistory,
    question: StatesQuestion,
    seconds: float,
) -> StatesAnswer:
    """The states of a workspace up to a snapshot of a session.

    Args:
        repository: Repository with the workspace's snapshots, which exists.
        git: The program.
        history: Reader of the snapshots.
        question: The session, and its snapshot.
        seconds: Time for each run of git.

    Raises:
        NotFound: there is no such snapshot.
        InvalidParameter: it is no name of a snapshot.
        RuntimeFailure: git failed, or a snapshot is damaged.
        DeadlineExceeded: it takes too long.
    """
    snapshots = await history.snapshots(question.session_id)
    if not snapshots:
        return StatesAnswer()
    if question.upto is None:
        newest = await history.newest(snapshots)
        wanted = [each for each in snapshots if each.commit == newest][-1]
    else:
        wanted = at(snapshots, question.upto, "turn")
    found = await _line_to(repository, git, wanted.commit, seconds)
    # Another snapshot may have the same files, and another list of those that have no content.
    found[-1] = found[-1][0], f"{_REST}/{question.session_id}/{wanted.name}"
    asked = "".join(f"{rest}:{MANIFEST.decode()}\n" for _, rest in found).encode()
    manifests = _contents(
        await git.run(repository, "cat-file", "--batch", given=asked, seconds=seconds)
    )
    states = [
        replace(state, unstored=_unstored(manifest))
        for (state, _), manifest in zip(found, manifests, strict=True)
    ]
    states[-1] = replace(states[-1], refused=await _refused(repository, git, found[-1][1], seconds))
    return StatesAnswer(name=wanted.name, states=tuple(states))


async def _refused(
    repository: Path, git: GitProgram, rest: str, seconds: float
) -> tuple[bytes, ...]:
    """The paths of a workspace with a name that git refuses, but for its own `.git`."""
    command = ("ls-tree", "-z", "--name-only", "--full-tree", rest, BELOW.decode())
    top = _refused_in(await git.run(repository, *command, seconds=seconds))
    if not top:
        return ()  # the many files in its `.git` are not listed
    return _refused_in(await git.run(repository, *command[:1], "-r", *command[1:], seconds=seconds))


def _refused_in(listing: bytes) -> tuple[bytes, ...]:
    try:
        paths = [refused_path(path) for path in listing.split(b"\0")[:-1]]
    except ValueError as error:
        raise RuntimeFailure(f"a snapshot is damaged: {error}") from error
    return tuple(dict.fromkeys(path for path in paths if path is not None))


async def _line_to(
    repository: Path, git: GitProgram, commit: str, seconds: float
) -> list[tuple[WorkspaceState, str]]:
    """Return the states up to a commit, and the ref with the rest of each."""
    listed = await git.run(
        repository, "log", "--reverse", "--first-parent", f"--format={_FORMAT}", commit,
        seconds=seconds,
    )  # fmt: skip
    found: list[tuple[WorkspaceState, str]] = []
    for line in listed.decode().splitlines():
        name, tree, when, session_id, turn, moment, tag = line.split("\0")
        label = turn + ("" if moment == "end" else f"-{moment}") + (f"-{tag}" if tag else "")
        state = WorkspaceState(
            commit=name,
            tree=tree,
            committed_at=float(when),
            session_id=session_id,
            turn=int(turn or 0),
            moment=moment,
        )
        found.append((state, f"{_REST}/{session_id}/{label}"))
    return found


def _contents(output: bytes) -> Iterator[bytes | None]:
    """Read the output of `git cat-file --batch`; None: there is no such object."""
    place = 0
    while place < len(output):
        end = output.index(b"\n", place)
        head = output[place:end].rsplit(b" ", 2)
        place = end + 1
        if head[-1] == b"missing":
            yield None
            continue
        size = int(head[-1])
        yield output[place : place + size]
        place += size + 1


def _unstored(manifest: bytes | None) -> tuple[UnstoredFile, ...]:
    if manifest is None:  # the snapshot itself is gone, another has the same files
        return ()
    try:
        found = without_content(manifest)
    except ValueError as error:
        raise RuntimeFailure(f"the manifest of a snapshot is damaged: {error}") from error
    empty = set(NO_CONTENT.values())
    large = (
        UnstoredFile(
            path=os.fsencode(path),
            reason=f"{size} bytes, of which snapshots have the SHA-256 alone",
            size=size,
            sha256=digest,
        )
        for path, (size, digest, _) in found["large"].items()
    )
    others = (
        UnstoredFile(path=os.fsencode(path), reason=why)
        for path, why in found["left_out"].items()
        if why not in empty
    )
    return (*large, *others)
