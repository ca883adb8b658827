"""Commands `oubliette image list | rebuild | refresh`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import Format, Home, Output, note, print_json, print_table
from oubliette.cli.terminal.times import duration

app = typer.Typer(help="Images of container types.", no_args_is_help=True)

LONGEST = 3600.0  # seconds: builds and pulls have deadlines of their own in the configuration

Timeout = Annotated[
    float | None,
    typer.Option(
        parser=duration,
        metavar="DURATION",
        help="Time limit without progress; 1h unless set.",
    ),
]


def _call(
    home: str | None, what: str, tool: str, arguments: dict[str, Any], timeout: float | None
) -> dict[str, Any]:
    from oubliette.cli.client.tools import HomeServer
    from oubliette.cli.terminal.progress import shown
    from oubliette.config.loader import find_home

    seconds = LONGEST if timeout is None else timeout
    with shown(what) as report:
        return HomeServer(find_home(home)).call(tool, arguments, seconds, on_progress=report)


@app.command("list")
def list_images(home: Home = None, output: Output = Format.text) -> None:
    """List the container types with their images, and the state of each image in the engine."""
    from oubliette.cli.engine_images import listing, table_of
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


@app.command("rebuild")
def rebuild(
    container_type: Annotated[str, typer.Argument(help="Container type, from image list.")],
    timeout: Timeout = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Build the image of a container type from its Dockerfile; running containers keep theirs."""
    arguments = {"container_type": container_type}
    done = _call(home, f"building {container_type}", "image_rebuild", arguments, timeout)
    _print_outcome(done, output)


@app.command("refresh")
def refresh(
    container_type: Annotated[
        str | None, typer.Argument(help="Container type, from image list.")
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(help="Id or name of a project instead; its container is recreated too."),
    ] = None,
    timeout: Timeout = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Pull the image of a container type, or of a project, again."""
    if (container_type is None) == (project is None):
        raise typer.BadParameter("give a container type or --project, one of them")
    arguments = {
        "container_type": container_type,
        "project_id": None if project is None else whole_id(home, "project", project),
    }
    what = f"fetching the image of {container_type or project}"
    _print_outcome(_call(home, what, "container_refresh", arguments, timeout), output)


@app.command("snapshot")
def snapshot(
    project: Annotated[str, typer.Argument(help="Id or name of the project.")],
    name: Annotated[str, typer.Option(help="Tag of the image.")] = "latest",
    timeout: Timeout = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Make an image of a project's running container; the next ones begin with it."""
    arguments = {"project_id": whole_id(home, "project", project), "name": name}
    what = f"storing the container of {project}"
    done = _call(home, what, "container_snapshot", arguments, timeout)
    if output is Format.json:
        print_json(done)
        return
    note(f"{done['image']} is the image of the project's next containers.")


def _print_outcome(done: dict[str, Any], output: Format) -> None:
    if output is Format.json:
        print_json(done)
        return
    words = {
        "built": "was built",
        "fetched": "was fetched",
        "local": "comes from no registry; nothing was fetched",
    }
    note(f"{done['image']} {words.get(done['state'], done['state'])}.")
