"""`oubliette project list`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from oubliette.cli.output import Format, Home, Output, moment, print_json, print_table

app = typer.Typer(help="Projects.", no_args_is_help=True)


@app.command("list")
def list_projects(
    name_contains: Annotated[str | None, typer.Option(help="Part of the name.")] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """List projects, oldest first."""
    from oubliette.cli.server_access import call_tool
    from oubliette.config import find_home

    place = find_home(home)
    projects: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = call_tool(place, "project_list", {"name_contains": name_contains, "cursor": cursor})
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
