"""Command `oubliette run`: one task for an agent, from a checkout to the diff."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.terminal import choices
from oubliette.cli.terminal.output import Format, Home, Output, home_option, note, print_json
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.cli.run.conversation import Outcome

_ENDINGS: Final = {"failed": "The turn has failed.", "interrupted": "The turn was interrupted."}


def run(  # noqa: PLR0917 - one parameter per option
    prompt: Annotated[
        str, typer.Argument(help="Task for the agent; - reads it from standard input.")
    ],
    repo: Annotated[
        str | None,
        typer.Option(
            metavar="URL|PATH",
            help="Repository to work on; unset: the checkout that the current folder is in.",
        ),
    ] = None,
    branch: Annotated[
        str | None, typer.Option(help="Branch to begin at; unset: the one that is checked out.")
    ] = None,
    dirty: Annotated[
        bool, typer.Option("--dirty", help="Bring the uncommitted changes of the checkout too.")
    ] = False,
    project: Annotated[
        str | None,
        typer.Option(help="Work in this project (id or name) instead of on a repository."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar=choices.AGENT, help="Agent; else the server's.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model; else the server's.")] = None,
    autonomy: Annotated[
        str | None,
        typer.Option(
            metavar=choices.AUTONOMY,
            help="Actions allowed without asking you: off (all) to ask (none)."
            " Unset: ask at a terminal, else the server's.",
        ),
    ] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Have an agent do a task on a copy of your checkout, and show what it has changed.

    Your files are only read. The agent works in a container on a branch of its own. Ctrl-C
    leaves it running, a second one at once interrupts it. A pipe gets its last message alone.
    """
    from oubliette.cli.run import chosen_project
    from oubliette.cli.serve import background
    from oubliette.config.loader import find_home

    if project is not None and (repo is not None or branch is not None or dirty):
        raise typer.BadParameter("--repo, --branch and --dirty are for work on a repository")
    task = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
    source = None if project else chosen_project.Source(repo, branch, dirty=dirty)
    place = find_home(home)
    server = background.found_or_started(place)
    if source is None:
        project_id = chosen_project.named(home, project or "")
    else:
        project_id = chosen_project.project_of(home, place, source)
    given = {"agent": agent, "model": model, "autonomy": autonomy}
    outcome = _with_key(place, server.url, project_id, task, given)
    changes = _leave(home, outcome, in_checkout=source is not None and repo is None)
    if output is Format.json:
        print_json({**outcome.fields, "changes": changes})
    elif outcome.status == "completed" and not sys.stdout.isatty() and outcome.final_text:
        sys.stdout.write(outcome.final_text.rstrip("\n") + "\n")
    raise typer.Exit(_exit_code(outcome))


def _with_key(place: Path, url: str, project_id: str, task: str, given: dict[str, Any]) -> Outcome:
    """Run the session with a key that exists as long as this command."""
    import asyncio

    from oubliette.cli.run import conversation

    options = {name: value for name, value in given.items() if value is not None}
    with conversation.key_of_operator(place, f"project:{project_id}", "oubliette run") as key:
        return asyncio.run(conversation.converse(url, key, project_id, task, **options))


def _exit_code(outcome: Outcome) -> int:
    if outcome.left or outcome.interrupted:
        return 130
    return 0 if outcome.status == "completed" else 1


def _leave(home: str | None, outcome: Outcome, *, in_checkout: bool) -> dict[str, int] | None:
    """Print the diff and how to go on; return the size of the diff, None if there is none.

    Args:
        home: As given on the command line.
        outcome: Of the turn.
        in_checkout: Whether the changes are for the checkout of the current folder.
    """
    session_id = outcome.session_id
    where = home_option(home)
    if outcome.left:
        note(f"{session_id} goes on. Come back to it:")
        note(f"  oubliette attach {session_id}{where}")
        note(f"  oubliette diff {session_id}{where}")
        note(f"  oubliette session interrupt {session_id}{where}")
        return None
    changes = None
    try:
        changes = _show_diff(home, session_id)
    except OublietteError as error:
        note(f"No diff: {error.message}" + (f" ({error.hint})" if error.hint else ""))
    if outcome.status != "completed":
        note(_ENDINGS.get(outcome.status, f"The turn is {outcome.status}."))
    note("")
    may_have_changed = changes is None or changes["files"]
    if may_have_changed and in_checkout:
        note(f"  take it   oubliette apply {session_id}{where}")
    elif may_have_changed:
        note(f"  take it   oubliette export {session_id} changes.patch{where}")
    note(f"  drop it   oubliette drop {session_id}{where}")
    note(f"  go on     oubliette session message {session_id} '…' -f{where}")
    return changes


def _show_diff(home: str | None, session_id: str) -> dict[str, int]:
    """Print the diff; return its size."""
    from oubliette.cli import diff
    from oubliette.cli.terminal.screen import to_person

    return diff.show(home, {"session_id": session_id, "format": "patch"}, to_person())
