"""Commands `oubliette project list | create | delete`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    moment,
    note,
    print_json,
    print_table,
)

app = typer.Typer(help="Projects.", no_args_is_help=True)


def _call(home: str | None, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    from oubliette.cli.client.tools import HomeServer
    from oubliette.config.loader import find_home

    return HomeServer(find_home(home)).call(tool, arguments)


@app.command("list")
def list_projects(
    name_contains: Annotated[str | None, typer.Option(help="Part of the name.")] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """List projects, oldest first."""
    projects: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = _call(home, "project_list", {"name_contains": name_contains, "cursor": cursor})
        projects.extend(page["projects"])
        cursor = page["next_cursor"]
        if cursor is None:
            break
    if output is Format.json:
        print_json({"projects": projects})
        return
    print_table(
        ("ID", "NAME", "CREATED", "AGENT", "DESCRIPTION"),
        [
            (
                each["id"],
                each["name"],
                moment(each["created_at"]),
                each["agent"] or "auto",
                each["description"].partition("\n")[0][:60],
            )
            for each in projects
        ],
    )


@app.command("create")
def create(  # noqa: PLR0917 - one parameter per option
    name: Annotated[str, typer.Argument(help="Name, unique among existing projects.")],
    description: Annotated[str | None, typer.Option(help="Purpose, for people.")] = None,
    agent: Annotated[
        str | None, typer.Option(help="Agent of its sessions; else the server's.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model of its agents.")] = None,
    autonomy: Annotated[
        str | None,
        typer.Option(
            help="Actions allowed without a permission: off (all), high, medium, low, ask (none)."
        ),
    ] = None,
    container_type: Annotated[
        str | None, typer.Option(help="Type of its containers; else the server's default.")
    ] = None,
    remote_url: Annotated[
        str | None, typer.Option(help="URL of its repository, set as git's origin.")
    ] = None,
    git: Annotated[bool, typer.Option(help="Make the default workspace a git repository.")] = True,
    isolate_workspaces: Annotated[
        bool,
        typer.Option("--isolate-workspaces", help="Give each workspace a container of its own."),
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Create a project with a default workspace."""
    made = _call(
        home,
        "project_create",
        {
            "name": name,
            "description": description,
            "agent": agent,
            "model": model,
            "autonomy": autonomy,
            "container_type": container_type,
            "remote_url": remote_url,
            "init_git": git,
            "workspace_isolation": isolate_workspaces,
        },
    )
    if output is Format.json:
        print_json(made)
        return
    sys.stdout.write(made["id"] + "\n")
    note(f"Project {made['name']} was created.")


@app.command("delete")
def delete(
    project: Annotated[
        str, typer.Argument(help="Id of the project, which may be abbreviated, or its name.")
    ],
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Delete a project with its workspaces and files; refused while it has live sessions."""
    project_id = whole_id(home, "project", project)
    done = _call(home, "project_delete", {"project_id": project_id})
    if output is Format.json:
        print_json(done)
        return
    note(f"{project_id} was deleted.")
