"""Command `oubliette run`: one task for an agent, from a checkout to the diff."""

from __future__ import annotations

import io
import shlex
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Final

import typer

from oubliette.cli.terminal import choices
from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    home_option,
    note,
    print_json,
    without_notes,
)
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.cli.run.chosen_project import Source
    from oubliette.cli.run.run_task import Outcome, RunTask

_ENDINGS: Final = {"failed": "The turn has failed.", "interrupted": "The turn was interrupted."}


def run(  # noqa: PLR0913, PLR0917 - one parameter per option
    first: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR", help="Folder of the checkout to work on; unset: the current one."
        ),
    ] = None,
    second: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="Task for the agent; - reads it from standard input."
        ),
    ] = None,
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
    go_on: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the latest session of the project.")
    ] = False,
    session: Annotated[
        str | None,
        typer.Option(metavar="SESSION", help="Go on with this one; its id may be abbreviated."),
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
    max_cost: Annotated[
        float | None,
        typer.Option(
            metavar="USD", min=0, help="Cost after which no further agent works, children included."
        ),
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tool",
            metavar="python:MODULE.FUNCTION",
            help="Function that the agent may call, here; give it again for more.",
        ),
    ] = None,
    returns: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEMA.json", help="JSON Schema of the result, which is printed as JSON."
        ),
    ] = None,
    events: Annotated[
        bool, typer.Option("--events", help="Print events as JSON lines, and no transcript.")
    ] = False,
    notify: Annotated[
        bool,
        typer.Option("--notify", help="Ring the bell when it asks, and show it on the desktop."),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the answer alone, and errors.")
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Have an agent do a task on a copy of your checkout, and show what it has changed.

    Your files are only read. The agent works in a container on a branch of its own. Ctrl-C
    leaves it running, a second one at once interrupts it. A pipe gets its last message alone.
    """
    folder, prompt = (None, first) if second is None else (first, second)
    if prompt is None:
        raise typer.BadParameter("give the task", param_hint="PROMPT")
    source_given = folder or repo or branch or dirty
    _check_together(
        {
            "DIR and --repo": folder and repo,
            "--project and --session": project and session,
            "--continue and --session": go_on and session,
            "--project and a repository": project and source_given,
            "--session and a repository": session and source_given,
            "--agent and a session to go on with": agent and (go_on or session),
            "--max-cost and a session to go on with": max_cost is not None and (go_on or session),
            "--events and -o json": events and output is Format.json,
            "--events and --returns": events and returns,
        }
    )
    from oubliette.cli.run import chosen_project, named_parts, run_task
    from oubliette.cli.serve import background
    from oubliette.config.loader import find_home

    options = {"agent": agent, "model": model, "autonomy": autonomy}
    functions = [named_parts.tool_named(each) for each in tools or ()]
    described = None if returns is None else named_parts.result_described(returns)
    source = None
    if project is None and session is None:
        source = chosen_project.Source(folder or repo, branch, dirty=dirty)
    text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
    place = find_home(home)
    with without_notes() if quiet else nullcontext():
        server = background.found_or_started(place)
        project_id, session_id = _where(home, place, source, project, session, go_on=go_on)
        task = run_task.RunTask(
            project_id, text, options, session_id, functions, described, max_cost,
            events=events, quiet=quiet, notify=notify,
        )  # fmt: skip
        outcome = _with_key(place, server.url, task)
        changes = _leave(home, outcome, task, folder or "." if source and not repo else None)
    _print_result(outcome, task, changes, output)
    raise typer.Exit(outcome.exit_code)


def _check_together(pairs: dict[str, object]) -> None:
    """Refuse options that exclude each other.

    Args:
        pairs: Their names, and whether both were given.
    """
    for names, both in pairs.items():
        if both:
            raise typer.BadParameter(f"{names} exclude each other")


def _where(
    home: str | None,
    place: Path,
    source: Source | None,
    project: str | None,
    session: str | None,
    *,
    go_on: bool,
) -> tuple[str, str | None]:
    """Return the ids of the project, and of the session to go on with.

    Args:
        home: As given on the command line.
        place: Folder of the server.
        source: The repository to work on; None: another option names the place.
        project: As given.
        session: As given.
        go_on: Whether it is the latest session of the project.
    """
    from oubliette.cli.client.calls import call
    from oubliette.cli.client.resolver import latest_session, whole_id
    from oubliette.cli.run import chosen_project

    if session is not None:
        session_id = whole_id(home, "session", session)
        found = call(home, "session_get", {"session_id": session_id})
        return str(found["project_id"]), session_id
    if source is None:
        project_id = chosen_project.named(home, project or "")
    elif go_on:
        project_id = chosen_project.used_before(home, source)
    else:
        return chosen_project.project_of(home, place, source), None
    return project_id, latest_session(home, project_id) if go_on else None


def _with_key(place: Path, url: str, task: RunTask) -> Outcome:
    """Run the task with a key that exists as long as this command."""
    import asyncio

    from oubliette.cli.client.other_owner import explained
    from oubliette.cli.client.tools import HomeServer
    from oubliette.cli.run import conversation

    scope = f"project:{task.project_id}"
    with conversation.key_of_operator(place, scope, "oubliette run") as key:
        try:
            return asyncio.run(conversation.converse(url, key, task))
        except OublietteError as error:
            if task.session_id is None:
                raise
            get = HomeServer(place).call
            raise explained(get, task.session_id, error, "converse with it") from error


def _print_result(
    outcome: Outcome, task: RunTask, changes: dict[str, int] | None, output: Format
) -> None:
    """Print what a program reads; where a person reads stdout, the transcript has it.

    Raises:
        OublietteError: there is no result of the wanted form, or the tools were not called.
    """
    done = outcome.status == "completed" and outcome.problem is None
    if output is Format.json:
        result = {} if task.returns is None else {"result": outcome.result}
        print_json({**outcome.fields, **result, "changes": changes})
    elif done and task.returns is not None:
        print_json(outcome.result)
    elif done and not task.events and (task.quiet or not sys.stdout.isatty()):
        text = (outcome.final_text or "").rstrip("\n")
        sys.stdout.write(f"{text}\n" if text else "")
    if outcome.problem is not None:
        raise outcome.problem


def _leave(
    home: str | None, outcome: Outcome, task: RunTask, checkout: str | None
) -> dict[str, int] | None:
    """Print the diff and how to go on; return the size of the diff, None if there is none.

    Args:
        home: As given on the command line.
        outcome: Of the turn.
        task: What was asked for.
        checkout: Folder of the checkout that the changes are for; None: there is none.
    """
    session_id = outcome.session_id
    where = home_option(home)
    if outcome.asks:
        from oubliette.cli.client.following import note_answer_needed

        note_answer_needed(session_id, home)
        return None
    if outcome.left:
        note(f"{session_id} goes on. Come back to it:")
        note(f"  oubliette attach {session_id}{where}")
        note(f"  oubliette diff {session_id}{where}")
        note(f"  oubliette session interrupt {session_id}{where}")
        return None
    changes = None
    try:
        changes = _show_diff(home, session_id, task)
    except OublietteError as error:
        note(f"No diff: {error.message}" + (f" ({error.hint})" if error.hint else ""))
    if outcome.only_repeated:
        note("The scripted agent has understood nothing of it: it has repeated the task.")
    if outcome.status != "completed":
        note(_ENDINGS.get(outcome.status, f"The turn is {outcome.status}."))
    note("")
    may_have_changed = changes is None or changes["files"]
    if may_have_changed and checkout is not None:
        there = "" if checkout == "." else f"cd {shlex.quote(checkout)} && "
        note(f"  take it   {there}oubliette apply {session_id}{where}")
    elif may_have_changed:
        note(f"  take it   oubliette export {session_id} changes.patch{where}")
    note(f"  drop it   oubliette drop {session_id}{where}")
    note(f"  go on     oubliette session message {session_id} '…' -f{where}")
    return changes


def _show_diff(home: str | None, session_id: str, task: RunTask) -> dict[str, int]:
    """Print the diff; return its size."""
    from oubliette.cli import diff
    from oubliette.cli.terminal.screen import to_person

    stream = io.StringIO() if task.quiet else sys.stderr if task.events else to_person()
    return diff.show(home, {"session_id": session_id, "format": "patch"}, stream)
