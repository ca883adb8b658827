"""Trees of workspaces that would be lost with their project, and the consent to that."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Final

from oubliette.actors.merge_requests import FindKept, LastState
from oubliette.actors.snapshot_requests import SNAPSHOTS, StoreLast
from oubliette.errors import Conflict
from oubliette.runtime.snapshots.snapshot_names import EMPTY_TREE
from oubliette.runtime.snapshots.snapshot_records import SnapshotLabel
from oubliette.tools.event_queries import all_workspaces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oubliette.records import Project
    from oubliette.runtime.snapshots.history_records import Losses
    from oubliette.tools.services import ToolServices

STORE_SECONDS: Final = 300.0
"""Time for the last snapshots of all workspaces of a project."""
_SHOWN: Final = 10
"""Workspaces that a refusal names."""


async def check_discard(services: ToolServices, project: Project, discard: str | None) -> None:
    """Check that no file of an agent is lost with a project without consent.

    Its workspaces are stored before, so the consent is to what is there now.

    Raises:
        Conflict: a workspace has files, or live sessions; names the consent that is needed.
        DeadlineExceeded: storing takes too long.
    """
    owner = services.find_actor(SNAPSHOTS)
    if owner is None:
        return  # nothing of it was ever kept
    live = await services.reader.live_sessions(project.id)
    if live:
        return  # which refuses it in any case
    if services.nodes is not None:  # the folders may have to be made here
        await services.project_ref(project.id)
    label = SnapshotLabel(
        session_id="workspace", turn=0, moment="final", when=services.clock.time()
    )
    # Of those that were deleted, the snapshots are still there.
    workspaces = await services.reader.run(all_workspaces, project.id)
    found: list[Losses] = await asyncio.gather(
        *(
            owner.ask(
                StoreLast(project_id=project.id, workspace_id=each, label=label),
                timeout=STORE_SECONDS,
            )
            for each in workspaces
        )
    )
    lost = {
        workspace: losses
        for workspace, losses in zip(workspaces, found, strict=True)
        if losses.tree != EMPTY_TREE or losses.count
    }
    if project.repository is not None and lost:
        for workspace in await _kept(services, project, lost):
            del lost[workspace]
    consent = _consent([each.tree for each in lost.values()])
    if not lost or discard == consent:
        return
    shown = ", ".join(f"{name} (tree {each.tree})" for name, each in list(lost.items())[:_SHOWN])
    more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    raise Conflict(
        f"the files of {len(lost)} workspaces would be lost with the project: {shown}{more}",
        hint=f'take out what is needed by session_export, or consent with discard="{consent}"',
    )


async def _kept(
    services: ToolServices, project: Project, lost: Mapping[str, Losses]
) -> tuple[str, ...]:
    """The workspaces of which the repository has everything that was cloned."""
    states = {
        workspace: LastState(tree=each.tree, named=each.named)
        for workspace, each in lost.items()
        if each.named is not None and not each.count
    }
    if not states:
        return ()
    owner = await services.project_ref(project.id)
    return await owner.ask(FindKept(workspaces=states), timeout=STORE_SECONDS)


def _consent(trees: Sequence[str]) -> str:
    """Return what a user repeats: the tree, or a digest of several."""
    if len(set(trees)) == 1:
        return trees[0]
    return hashlib.sha1("\n".join(sorted(trees)).encode(), usedforsecurity=False).hexdigest()
