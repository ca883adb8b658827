"""Command `oubliette session end`: of one session, of its tree, or of all live ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.client.calls import call, pages
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import Format, Home, Output, note, print_error, print_json
from oubliette.errors import NotFound, OublietteError

if TYPE_CHECKING:
    from collections.abc import Iterator

AT_REST: Final = frozenset({"completed", "failed", "timed_out"})
AT_ONCE: Final = 8  # calls; the server accepts 32 commands


def end(  # noqa: PLR0917 - one parameter per option
    session_id: Annotated[
        str | None, typer.Argument(help="Id of the session, which may be abbreviated.")
    ] = None,
    tree: Annotated[bool, typer.Option("--tree", help="End its descendants too.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="End every live session, of every project.")
    ] = False,
    project: Annotated[
        str | None,
        typer.Option("--project", help="With --all: only sessions of this project (id or name)."),
    ] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """End a session, so that no message resumes it; with --all, each live one."""
    if everything is (session_id is not None):
        raise typer.BadParameter("give a session, or --all", param_hint="SESSION_ID")
    if project is not None and not everything:
        raise typer.BadParameter("it goes with --all alone", param_hint="--project")
    if session_id is None:
        _end_all(home, project, output)
        return
    session_id = whole_id(home, "session", session_id)
    done = _end(home, session_id, tree=tree)
    if output is Format.json:
        print_json(done)
        return
    note(f"{session_id} is {done['status']}.")
    if living := done.get("living_descendants"):
        lives = "1 of its descendants lives" if living == 1 else f"{living} of its descendants live"
        note(f"{lives} on; oubliette session end {session_id} --tree ends them too.")


def _end(home: str | None, session_id: str, *, tree: bool) -> dict[str, Any]:
    return call(home, "session_end", {"session_id": session_id, "tree": tree})


def _end_all(home: str | None, project: str | None, output: Format) -> None:
    """End every live session; one that cannot be ended does not delay the others.

    Raises:
        typer.Exit: with code 1 if some could not be ended; each was printed.
    """
    from concurrent.futures import ThreadPoolExecutor

    ended: list[dict[str, Any]] = []
    refused: list[OublietteError] = []

    def end_one(session_id: str) -> None:
        try:
            ended.append(_end(home, session_id, tree=True))
        except NotFound:
            pass  # it was cleaned up in between
        except OublietteError as error:
            refused.append(error)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(end_one, _roots_of_living(home, project)))
    if output is Format.json:
        print_json({"ended": sorted(ended, key=lambda each: str(each["session_id"]))})
    else:
        note(f"{len(ended)} sessions were ended, with their children.")
    for error in refused:
        print_error(error)
    if refused:
        raise typer.Exit(1)


def _roots_of_living(home: str | None, project: str | None) -> Iterator[str]:
    """Return live sessions without a live ancestor: those below them end with them."""
    if project is not None:
        projects = [whole_id(home, "project", project)]
    else:
        projects = [each["id"] for each in pages(home, "project_list", "projects", {})]
    for each in projects:
        sessions = pages(home, "session_list", "sessions", {"project_id": each})
        live = {one["session_id"]: one for one in sessions if one["status"] not in AT_REST}
        for session_id, session in live.items():
            if session["parent_session_id"] not in live:
                yield session_id
