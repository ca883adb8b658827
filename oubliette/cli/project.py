"""Commands `oubliette project list | create | update | fetch | branches | delete`."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any, Final

import typer

from oubliette.cli.client.calls import pages
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    clean,
    moment,
    note,
    print_json,
    print_table,
)
from oubliette.user_paths import absolute

app = typer.Typer(help="Projects.", no_args_is_help=True)


_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*:|[\w.-]+@[\w.-]+:")
"""Beginning of a URL of a repository; everything else is a path."""
QUIET_SECONDS: Final = 600.0
"""Time without progress of git; a clone has a deadline of its own in the configuration."""
DELETE_SECONDS: Final = 360.0
"""Time for the deletion of a project, before which the server stores all of its workspaces."""


def _call(
    home: str | None, tool: str, arguments: dict[str, Any], seconds: float = 60.0
) -> dict[str, Any]:
    from oubliette.cli.client.tools import HomeServer
    from oubliette.config.loader import find_home

    return HomeServer(find_home(home)).call(tool, arguments, seconds)


def _follow(home: str | None, what: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a tool that takes its time; its progress is shown."""
    from oubliette.cli.client.tools import HomeServer
    from oubliette.cli.terminal.progress import shown
    from oubliette.config.loader import find_home

    with shown(what) as report:
        return HomeServer(find_home(home)).call(tool, arguments, QUIET_SECONDS, on_progress=report)


def repository_of(
    repo: str | None,
    branch: str | None,
    depth: int | None,
    *,
    submodules: bool,
    dirty: bool,
    lfs: bool = False,
    allow_push: bool = False,
) -> dict[str, Any] | None:
    """Return the parameter `repository` of `project_create`; None: no repository is asked for."""
    if repo is None:
        if branch is not None or depth is not None or submodules or lfs or dirty or allow_push:
            raise typer.BadParameter(
                "--branch, --depth, --submodules, --lfs, --dirty and --allow-push belong to --repo"
            )
        return None
    source = (
        {"url": repo} if _URL.match(repo) else {"path": str(absolute(repo, "--repo").resolve())}
    )
    options = {"branch": branch, "depth": depth, "submodules": submodules, "dirty": dirty}
    return {**source, **options, "lfs": lfs, "push": allow_push}


@app.command("list")
def list_projects(
    name_contains: Annotated[str | None, typer.Option(help="Part of the name.")] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """List projects, oldest first."""
    projects = pages(home, "project_list", "projects", {"name_contains": name_contains})
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
    for each in projects:
        if each["problem"] is not None:
            note(
                f"{each['name']} ({each['id']}) cannot be used: {each['problem']};"
                " remove what stands there, or delete the project"
            )


@app.command("create")
def create(  # noqa: PLR0913, PLR0917 - one parameter per option
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
    repo: Annotated[
        str | None,
        typer.Option(
            metavar="URL|PATH", help="Repository to clone: its URL, or a checkout on this machine."
        ),
    ] = None,
    branch: Annotated[
        str | None, typer.Option(help="Branch at which workspaces begin; else its HEAD.")
    ] = None,
    depth: Annotated[int | None, typer.Option(help="Commits to fetch; else all.")] = None,
    submodules: Annotated[
        bool, typer.Option("--submodules", help="Fetch its submodules into each workspace.")
    ] = False,
    lfs: Annotated[
        bool, typer.Option("--lfs", help="Fetch the content of files that Git LFS keeps.")
    ] = False,
    dirty: Annotated[
        bool, typer.Option("--dirty", help="Bring the uncommitted changes of the checkout too.")
    ] = False,
    allow_push: Annotated[
        bool, typer.Option("--allow-push", help="Consent to pushes of branches to it.")
    ] = False,
    git: Annotated[bool, typer.Option(help="Make the default workspace a git repository.")] = True,
    isolate_workspaces: Annotated[
        bool,
        typer.Option("--isolate-workspaces", help="Give each workspace a container of its own."),
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Create a project with a default workspace, empty or as a clone of a repository."""
    arguments = {
        "name": name,
        "description": description,
        "agent": agent,
        "model": model,
        "autonomy": autonomy,
        "container_type": container_type,
        "remote_url": remote_url,
        "repository": repository_of(
            repo,
            branch,
            depth,
            submodules=submodules,
            lfs=lfs,
            dirty=dirty,
            allow_push=allow_push,
        ),
        "init_git": git,
        "workspace_isolation": isolate_workspaces,
    }
    if repo is None:
        made = _call(home, "project_create", arguments)
    else:
        made = _follow(home, f"cloning {repo}", "project_create", arguments)
    if output is Format.json:
        print_json(made)
        return
    sys.stdout.write(made["id"] + "\n")
    note(f"Project {made['name']} was created.")


@app.command("update")
def update(
    project: Annotated[
        str, typer.Argument(help="Id of the project, which may be abbreviated, or its name.")
    ],
    allow_push: Annotated[
        bool | None,
        typer.Option(
            "--allow-push/--no-allow-push",
            help="Give or withdraw the consent to push to where it was cloned from.",
        ),
    ] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Change a project: whether branches may be pushed to where it was cloned from."""
    if allow_push is None:
        raise typer.BadParameter("give --allow-push or --no-allow-push")
    project_id = whole_id(home, "project", project)
    done = _call(home, "project_update", {"project_id": project_id, "allow_push": allow_push})
    if output is Format.json:
        print_json(done)
        return
    note(f"Pushes are {'allowed' if allow_push else 'refused'} now.")


@app.command("fetch")
def fetch(
    project: Annotated[
        str, typer.Argument(help="Id of the project, which may be abbreviated, or its name.")
    ],
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Fetch what is new in the repository that a project was cloned from."""
    project_id = whole_id(home, "project", project)
    done = _follow(home, f"fetching {project}", "repository_fetch", {"project_id": project_id})
    if output is Format.json:
        print_json(done)
        return
    for what, branches in (("updated", done["updated"]), ("removed", done["removed"])):
        sys.stdout.writelines(f"{what} {clean(branch)}\n" for branch in branches)
    if not done["updated"] and not done["removed"]:
        note("Nothing is new.")


@app.command("branches")
def branches(
    project: Annotated[
        str, typer.Argument(help="Id of the project, which may be abbreviated, or its name.")
    ],
    name_contains: Annotated[str | None, typer.Option(help="Part of the name.")] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """List the branches that were fetched, those with the newest commits first."""
    asked = {
        "project_id": whole_id(home, "project", project),
        "name_contains": name_contains,
        "limit": 1000,
    }
    found = _call(home, "repository_branches", asked)
    if output is Format.json:
        print_json(found)
        return
    print_table(
        ("BRANCH", "COMMIT", "COMMITTED", "SUBJECT"),
        [
            (
                each["name"] + (" *" if each["default"] else ""),
                each["commit"][:12],
                moment(each["committed_at"]),
                each["subject"][:60],
            )
            for each in found["branches"]
        ],
    )
    if found["more"]:
        note("There are more; --name-contains shows fewer.")


@app.command("delete")
def delete(
    project: Annotated[
        str, typer.Argument(help="Id of the project, which may be abbreviated, or its name.")
    ],
    discard: Annotated[
        str | None, typer.Option("--discard", help="Consent to a loss, as a refusal names it.")
    ] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Delete a project with its workspaces and files; refused while it has live sessions."""
    project_id = whole_id(home, "project", project)
    done = _call(
        home, "project_delete", {"project_id": project_id, "discard": discard}, DELETE_SECONDS
    )
    if output is Format.json:
        print_json(done)
        return
    note(f"{project_id} was deleted.")
