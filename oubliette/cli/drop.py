"""Command `oubliette drop`: ends a session and deletes its workspace."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from oubliette.cli.client.calls import call
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import Format, Home, Output, note, print_json
from oubliette.errors import Conflict


def drop(
    session_id: Annotated[str, typer.Argument(help="Id of the session, which may be abbreviated.")],
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """End a session with its children, and delete its workspace.

    Its log stays, and so do the snapshots of the workspace until the project is deleted.
    """
    session_id = whole_id(home, "session", session_id)
    found = call(home, "session_get", {"session_id": session_id})
    project = call(home, "project_get", {"project_id": found["project_id"]})
    if found["workspace_id"] == project["default_workspace_id"]:
        raise Conflict(
            f"{session_id} works in the default workspace of project {project['name']}, which"
            " stays as long as the project",
            hint=f"oubliette session end {session_id} ends it; oubliette restore {session_id}"
            " --turn 1-start brings back the files from before it",
        )
    call(home, "session_end", {"session_id": session_id, "tree": True})
    arguments: dict[str, Any] = {
        "project_id": found["project_id"],
        "workspace_id": found["workspace_id"],
    }
    deleted = call(home, "workspace_delete", arguments)
    if output is Format.json:
        print_json({"session_id": session_id, **deleted})
        return
    note(f"{session_id} has ended, and its workspace {found['workspace_id']} is deleted.")
