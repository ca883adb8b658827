"""Commands `oubliette project` and `oubliette workspace`."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.client.calls import pages
from oubliette.cli.client.resolver import fitting, whole_id
from oubliette.cli.client.tool_command import (
    DISCARD,
    PROJECT,
    YES,
    ToolCommand,
    argument,
    asked_first,
    flag,
    option,
)
from oubliette.cli.terminal import choices
from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    at,
    clean,
    line_of,
    note,
    print_entries,
    print_json,
)
from oubliette.errors import NotFound
from oubliette.user_paths import absolute

if TYPE_CHECKING:
    from oubliette.cli.client.tool_command import Answer
    from oubliette.cli.terminal.output import Column

app = typer.Typer(help="Projects.", no_args_is_help=True)

_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*:|[\w.-]+@[\w.-]+:")
"""Beginning of a URL of a repository; everything else is a path."""
ANSWERS: Final = option(
    "answers",
    "Keys that answer permission requests: owner, or team (all that may write in it).",
    metavar="owner|team",
)
DELETE_SECONDS: Final = 360.0
"""Time for the deletion of a project, before which the server stores all of its workspaces."""
NAME_CONTAINS: Final = option("name_contains", "Part of the name.")
PROJECTS: Final[tuple[Column, ...]] = (
    ("ID", "id"),
    ("NAME", "name"),
    ("CREATED", at("created_at")),
    ("AGENT", lambda each: each["agent"] or "auto"),
    ("DESCRIPTION", line_of("description", 60)),
)
BRANCHES: Final[tuple[Column, ...]] = (
    ("BRANCH", lambda each: each["name"] + (" *" if each["default"] else "")),
    ("COMMIT", lambda each: each["commit"][:12]),
    ("COMMITTED", at("committed_at")),
    ("SUBJECT", lambda each: each["subject"][:60]),
)


def _with_repository(given: dict[str, Any]) -> dict[str, Any]:
    """Put the parameter `repository` of `project_create` in the place of its options."""
    given = dict(given)
    repo = given.pop("repo")
    repository = {
        name: given.pop(name) for name in ("branch", "depth", "submodules", "dirty", "lfs")
    }
    repository["push"] = given.pop("allow_push")
    if repo is None:
        if any(each is not None and each is not False for each in repository.values()):
            raise typer.BadParameter(
                "--branch, --depth, --submodules, --lfs, --dirty and --allow-push belong to --repo"
            )
        return given
    place = {"url": repo} if _URL.match(repo) else {"path": str(absolute(repo, "--repo").resolve())}
    return {**given, "repository": {**place, **repository}}


def _check_update(given: dict[str, Any]) -> dict[str, Any]:
    if given["allow_push"] is None and given["answers"] is None:
        raise typer.BadParameter("give --allow-push, --no-allow-push or --answers")
    return given


@ToolCommand(
    app,
    "list",
    "project_list",
    (NAME_CONTAINS,),
    "oubliette project list --name-contains shop",
    entries="projects",
)
def list_projects(answer: Answer) -> None:
    """List projects, oldest first."""
    projects = answer.done["projects"]
    print_entries(PROJECTS, projects)
    for each in projects:
        if each["problem"] is not None:
            note(
                f"{each['name']} ({each['id']}) cannot be used: {each['problem']};"
                " remove what stands there, or delete the project"
            )


@ToolCommand(
    app,
    "create",
    "project_create",
    (
        argument("name", "Name, unique among existing projects."),
        option("description", "Purpose, for people."),
        option("agent", "Agent of its sessions; else the server's.", metavar=choices.AGENT),
        option("model", "Model of its agents."),
        option(
            "autonomy",
            "Actions allowed without a permission: off (all) to ask (none).",
            metavar=choices.AUTONOMY,
        ),
        option("container_type", "Type of its containers; else the server's default."),
        option("remote_url", "URL of its repository, set as git's origin."),
        option(
            "repo",
            "Repository to clone: its URL, or a checkout on this machine.",
            metavar="URL|PATH",
        ),
        option("branch", "Branch at which workspaces begin; else its HEAD."),
        option("depth", "Commits to fetch; else all.", kind=int | None),
        flag("submodules", "Fetch its submodules into each workspace."),
        flag("lfs", "Fetch the content of files that Git LFS keeps."),
        flag("dirty", "Bring the uncommitted changes of the checkout too."),
        flag("allow_push", "Consent to pushes of branches to it."),
        option(
            "git",
            "Make the default workspace a git repository.",
            "init_git",
            kind=bool,
            default=True,
        ),
        flag(
            "isolate_workspaces",
            "Give each workspace a container of its own.",
            "workspace_isolation",
        ),
        option(
            "answers",
            "Keys that answer permission requests: owner, or team (all that may write in it).",
            metavar="owner|team",
            kind=str,
            default="owner",
        ),
    ),
    "oubliette project create shop --repo https://github.com/acme/shop",
    progress=lambda given: "" if given["repo"] is None else f"cloning {given['repo']}",
    prepare=_with_repository,
)
def create(answer: Answer) -> None:
    """Create a project with a default workspace, empty or as a clone of a repository."""
    sys.stdout.write(answer.done["id"] + "\n")
    note(f"Project {answer.done['name']} was created.")


@ToolCommand(
    app,
    "update",
    "project_update",
    (
        PROJECT,
        option(
            "allow_push",
            "Give or withdraw the consent to push to where it was cloned from.",
            kind=bool | None,
        ),
        ANSWERS,
    ),
    "oubliette project update shop --allow-push",
    prepare=_check_update,
)
def update(answer: Answer) -> None:
    """Change a project: pushes to where it was cloned from, and who answers its agents."""
    if answer.given["allow_push"] is not None:
        note(f"Pushes are {'allowed' if answer.given['allow_push'] else 'refused'} now.")
    if answer.given["answers"] is not None:
        note(f"Permission requests are answered by: {answer.done['answers']}.")


@ToolCommand(
    app,
    "fetch",
    "repository_fetch",
    (PROJECT,),
    "oubliette project fetch shop",
    progress=lambda given: f"fetching {given['project']}",
)
def fetch(answer: Answer) -> None:
    """Fetch what is new in the repository that a project was cloned from."""
    done = answer.done
    for what in ("updated", "removed"):
        sys.stdout.writelines(f"{what} {clean(branch)}\n" for branch in done[what])
    if not done["updated"] and not done["removed"]:
        note("Nothing is new.")


@ToolCommand(
    app,
    "branches",
    "repository_branches",
    (PROJECT, NAME_CONTAINS),
    "oubliette project branches shop --name-contains fix/",
    prepare=lambda given: {**given, "limit": 1000},
)
def branches(answer: Answer) -> None:
    """List the branches that were fetched, those with the newest commits first."""
    print_entries(BRANCHES, answer.done["branches"])
    if answer.done["more"]:
        note("There are more; --name-contains shows fewer.")


@ToolCommand(
    app,
    "delete",
    "project_delete",
    (PROJECT, DISCARD, YES),
    "oubliette project delete shop",
    seconds=DELETE_SECONDS,
    prepare=asked_first("Delete project {project} with all of its workspaces and files?"),
)
def delete(answer: Answer) -> None:
    """Delete a project with its workspaces and files; refused while it has live sessions."""
    project, given = answer.sent["project_id"], answer.given["project"]
    note(f"{project if given == project else f'{given} ({project})'} was deleted.")


workspace_app = typer.Typer(help="Workspaces of a project.", no_args_is_help=True)

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
    workspace_app,
    "list",
    "workspace_list",
    (PROJECT,),
    "oubliette workspace list shop",
    entries="workspaces",
)
def list_workspaces(answer: Answer) -> None:
    """List the workspaces of a project, oldest first, with their folders."""
    from oubliette.config.loader import find_home
    from oubliette.runtime.files.project_dirs import Folders

    folders, project = Folders(find_home(answer.home)), answer.sent["project_id"]
    print_entries(
        (*WORKSPACES, ("PATH", lambda each: folders.workspace(project, each["id"]))),
        answer.done["workspaces"],
    )


@workspace_app.command("path")
def path_of_workspace(
    project: Annotated[
        str, typer.Argument(help="Id of the project, which may be abbreviated, or its name.")
    ],
    workspace: Annotated[
        str | None,
        typer.Argument(help="Id of the workspace, which may be abbreviated; else the default one."),
    ] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Print the folder of a workspace on this machine."""
    from oubliette.config.loader import find_home
    from oubliette.runtime.files.project_dirs import Folders

    sent = {"project_id": whole_id(home, "project", project)}
    there = pages(home, "workspace_list", "workspaces", sent)
    if workspace is None:
        chosen = next(each["id"] for each in there if each["is_default"])
    else:
        chosen = fitting("workspace", workspace, (each["id"] for each in there))
    folder = Folders(find_home(home)).workspace(sent["project_id"], chosen)
    if not folder.is_dir():
        raise NotFound(f"{folder} is not on this machine", hint="another node may have it")
    if output is Format.json:
        print_json({**sent, "workspace_id": chosen, "path": str(folder)})
    else:
        sys.stdout.write(f"{folder}\n")


@ToolCommand(
    workspace_app,
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
        YES,
    ),
    "oubliette workspace delete shop 7c9e6679-7425-40de-944b-e07fc1f90ae7",
    prepare=asked_first("Delete workspace {workspace} of project {project} with its files?"),
)
def delete_workspace(answer: Answer) -> None:
    """Delete a workspace and its files; refused for the default one and while sessions use it."""
    note(f"{answer.sent['workspace_id']} was deleted.")
