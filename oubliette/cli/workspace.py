"""Commands `oubliette workspace list | delete`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from oubliette.cli.client.calls import pages
from oubliette.cli.client.resolver import fitting, whole_id
from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    moment,
    note,
    print_json,
    print_table,
)

app = typer.Typer(help="Workspaces of a project.", no_args_is_help=True)

Project = Annotated[
    str, typer.Argument(help="Id of the project, which may be abbreviated, or its name.")
]


def _call(home: str | None, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    from oubliette.cli.client.tools import HomeServer
    from oubliette.config.loader import find_home

    return HomeServer(find_home(home)).call(tool, arguments)


@app.command("list")
def list_workspaces(project: Project, home: Home = None, output: Output = Format.text) -> None:
    """List the workspaces of a project, oldest first."""
    of_project = {"project_id": whole_id(home, "project", project)}
    workspaces = pages(home, "workspace_list", "workspaces", of_project)
    if output is Format.json:
        print_json({"workspaces": workspaces})
        return
    print_table(
        ("ID", "DEFAULT", "CREATED", "LAST SESSION", "EXTERNAL ID", "SOURCE"),
        [
            (
                each["id"],
                "yes" if each["is_default"] else "",
                moment(each["created_at"]),
                moment(each["last_session_at"]) or "never",
                each["external_id"],
                each["source"],
            )
            for each in workspaces
        ],
    )


@app.command("delete")
def delete(
    project: Project,
    workspace: Annotated[
        str, typer.Argument(help="Id of the workspace, which may be abbreviated.")
    ],
    discard: Annotated[
        str | None, typer.Option("--discard", help="Consent to a loss, as a refusal names it.")
    ] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Delete a workspace and its files; refused for the default one and while sessions use it."""
    project_id = whole_id(home, "project", project)
    there = pages(home, "workspace_list", "workspaces", {"project_id": project_id})
    workspace_id = fitting("workspace", workspace, (each["id"] for each in there))
    done = _call(
        home,
        "workspace_delete",
        {"project_id": project_id, "workspace_id": workspace_id, "discard": discard},
    )
    if output is Format.json:
        print_json(done)
        return
    note(f"{workspace_id} was deleted.")
