"""Commands `oubliette image list | rebuild | refresh | snapshot`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from oubliette.cli.client.tool_command import ToolCommand, argument, option, whole
from oubliette.cli.terminal.output import Format, Home, Output, note, print_json, print_table
from oubliette.cli.terminal.times import duration

if TYPE_CHECKING:
    from oubliette.cli.client.tool_command import Answer

app = typer.Typer(help="Images of container types.", no_args_is_help=True)

LONGEST: Final = 3600.0
"""Time without progress: builds and pulls have deadlines of their own in the configuration."""
TIMEOUT: Final = option(
    "timeout",
    "Time limit without progress; 1h unless set.",
    "",
    kind=float | None,
    parser=duration,
    metavar="DURATION",
)


@app.command("list")
def list_images(home: Home = None, output: Output = Format.text) -> None:
    """List the container types with their images, and the state of each image in the engine."""
    from oubliette.cli.client.engine_images import listing, table_of
    from oubliette.config.loader import find_home, load

    found = listing(load(find_home(home)).config)
    if output is Format.json:
        print_json(found)
        return
    head, rows = table_of(found)
    print_table(head, rows)
    engine = found["engine"]
    if engine["reason"] is not None:
        note(f"{engine['reason']}: it is unknown which images are present.")
        if engine["remedy"]:
            note(f"hint: {engine['remedy']}")


def _one_of_them(given: dict[str, Any]) -> dict[str, Any]:
    if (given["container_type"] is None) == (given["project"] is None):
        raise typer.BadParameter("give a container type or --project, one of them")
    return given


@ToolCommand(
    app,
    "rebuild",
    "image_rebuild",
    (argument("container_type", "Container type, from image list."), TIMEOUT),
    "oubliette image rebuild dev",
    seconds=LONGEST,
    progress=lambda given: f"building {given['container_type']}",
)
def rebuild(answer: Answer) -> None:
    """Build the image of a container type from its Dockerfile; running containers keep theirs."""
    _show(answer.done)


@ToolCommand(
    app,
    "refresh",
    "container_refresh",
    (
        argument(
            "container_type", "Container type, from image list.", kind=str | None, default=None
        ),
        option(
            "project",
            "Id or name of a project instead; its container is recreated too.",
            "project_id",
            whole("project"),
        ),
        TIMEOUT,
    ),
    "oubliette image refresh base",
    seconds=LONGEST,
    progress=lambda given: f"fetching the image of {given['container_type'] or given['project']}",
    prepare=_one_of_them,
)
def refresh(answer: Answer) -> None:
    """Pull the image of a container type, or of a project, again."""
    _show(answer.done)


@ToolCommand(
    app,
    "snapshot",
    "container_snapshot",
    (
        argument("project", "Id or name of the project.", "project_id", whole("project")),
        option("name", "Tag of the image.", kind=str, default="latest"),
        TIMEOUT,
    ),
    "oubliette image snapshot shop --name with-node",
    seconds=LONGEST,
    progress=lambda given: f"storing the container of {given['project']}",
)
def snapshot(answer: Answer) -> None:
    """Make an image of a project's running container; the next ones begin with it."""
    note(f"{answer.done['image']} is the image of the project's next containers.")


def _show(done: dict[str, Any]) -> None:
    words = {
        "built": "was built",
        "fetched": "was fetched",
        "local": "comes from no registry; nothing was fetched",
    }
    note(f"{done['image']} {words.get(done['state'], done['state'])}.")
