"""Commands `oubliette workspace list | delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from oubliette.cli.client.calls import pages
from oubliette.cli.client.resolver import fitting
from oubliette.cli.terminal.output import at, note, print_entries
from oubliette.cli.tool_command import DISCARD, PROJECT, ToolCommand, argument

if TYPE_CHECKING:
    from oubliette.cli.terminal.output import Column
    from oubliette.cli.tool_command import Answer

app = typer.Typer(help="Workspaces of a project.", no_args_is_help=True)

WORKSPACES: Final[tuple[Column, ...]] = (
    ("ID", "id"),
    ("DEFAULT", lambda each: "yes" if each["is_default"] else ""),
    ("CREATED", at("created_at")),
    ("LAST SESSION", at("last_session_at", "never")),
    ("EXTERNAL ID", "external_id"),
    ("SOURCE", "source"),
)


def _of_project(home: str | None, given: str, sent: dict[str, Any]) -> str:
    there = pages(home, "workspace_list", "workspaces", sent)
    return fitting("workspace", given, (each["id"] for each in there))


@ToolCommand(
    app, "list", "workspace_list", (PROJECT,), "oubliette workspace list shop", entries="workspaces"
)
def list_workspaces(answer: Answer) -> None:
    """List the workspaces of a project, oldest first."""
    print_entries(WORKSPACES, answer.done["workspaces"])


@ToolCommand(
    app,
    "delete",
    "workspace_delete",
    (
        PROJECT,
        argument(
            "workspace",
            "Id of the workspace, which may be abbreviated.",
            "workspace_id",
            _of_project,
        ),
        DISCARD,
    ),
    "oubliette workspace delete shop 7c9e6679-7425-40de-944b-e07fc1f90ae7",
)
def delete(answer: Answer) -> None:
    """Delete a workspace and its files; refused for the default one and while sessions use it."""
    note(f"{answer.sent['workspace_id']} was deleted.")
