"""Consent to the loss of files, as a refusal names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.callers import ToolFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def consent_in(refusal: BaseException) -> str:
    """What `discard` has to be."""
    return str(refusal).partition('discard="')[2][:40]


async def delete_with_all(call: Callable[..., Awaitable[Any]], project_id: str) -> None:
    """Delete a project with the files that its agents have left.

    `call` is how a tool is called: with its name and its arguments.
    """
    try:
        await call("project_delete", project_id=project_id)
    except Exception as refused:
        if 'discard="' not in str(refused):
            raise
        await call("project_delete", project_id=project_id, discard=consent_in(refused))


async def delete_workspace_with_all(
    call: Callable[..., Awaitable[Any]], project_id: str, workspace_id: str, *, lost: str
) -> None:
    """Delete a workspace, which is refused with `lost` and leaves it there, until consent."""
    where = {"project_id": project_id, "workspace_id": workspace_id}
    with pytest.raises(ToolFailed, match=lost) as refused:
        await call("workspace_delete", **where)
    listed = await call("workspace_list", project_id=project_id)
    assert workspace_id in [each["id"] for each in listed["workspaces"]]
    await call("workspace_delete", **where, discard=consent_in(refused.value))
