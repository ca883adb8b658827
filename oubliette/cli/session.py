"""Commands `oubliette session list | show | why | spawn | message | interrupt | end | logs`."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.client.calls import call, pages
from oubliette.cli.client.other_owner import explained
from oubliette.cli.client.resolver import latest_session, whole_id, whole_scope
from oubliette.cli.client.tool_command import SESSION, ToolCommand
from oubliette.cli.terminal import choices
from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    at,
    line_of,
    moment,
    note,
    print_entries,
    print_error,
    print_fields,
    print_json,
)
from oubliette.cli.terminal.times import SINCE_IN_LOGS
from oubliette.errors import NotFound, OublietteError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.cli.client.tool_command import Answer
    from oubliette.cli.terminal.output import Column

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
    elif len(ended) == 1:
        note("1 session was ended, with its children.")
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
        live = {one["session_id"]: one for one in sessions if one["status"] not in choices.AT_REST}
        for session_id, session in live.items():
            if session["parent_session_id"] not in live:
                yield session_id


app = typer.Typer(help="Agent sessions.", no_args_is_help=True)

SessionId = Annotated[str, typer.Argument(help="Id of the session, which may be abbreviated.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Print its events until its turn has ended.")
]
SESSIONS: Final[tuple[Column, ...]] = (
    ("ID", "session_id"),
    ("STATUS", "status"),
    ("AGENT", "agent"),
    ("DEPTH", "depth"),
    ("TURNS", "turn_count"),
    ("UPDATED", at("updated_at")),
    ("PROMPT", line_of("last_prompt", 50)),
)


@app.command("list")
def list_sessions(
    project: Annotated[
        str | None,
        typer.Option("--project", help="Id or name of a project; without it, of all projects."),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar=choices.STATUS,
            help="Only sessions with this status; give it again for one of several.",
        ),
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Only sessions with this in their title or last prompt.")
    ] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """List sessions, oldest first."""
    wanted = {
        "project_id": None if project is None else whole_id(home, "project", project),
        "status": status or None,
        "text": text,
    }
    sessions = pages(home, "session_list", "sessions", wanted)
    if output is Format.json:
        print_json({"sessions": sessions})
        return
    print_entries(SESSIONS, sessions)


@ToolCommand(app, "show", "session_get", (SESSION,), "oubliette session show 3k9x")
def show(answer: Answer) -> None:
    """Show a session."""
    from oubliette.cli.terminal.waiting import sentence

    found, now = answer.done, time.time()
    times = {name: moment(found[name]) for name in ("created_at", "updated_at", "ended_at")}
    waits = "\n".join(sentence(wait, now) for wait in found["waiting"])
    print_fields({**found, **times, "waiting": waits})


@app.command("why")
def why(session_id: SessionId, home: Home = None, output: Output = Format.text) -> None:
    """Show what a session waits for, and the children that it waits for."""
    from oubliette.cli.terminal import waiting

    def get(each: str) -> dict[str, Any]:
        return call(home, "session_get", {"session_id": each})

    waits = waiting.tree(whole_id(home, "session", session_id), get)
    if output is Format.json:
        print_json(waits)
        return
    for line in waiting.lines(waits):
        sys.stdout.write(line + "\n")


@app.command("spawn")
def spawn(  # noqa: PLR0913, PLR0917 - one parameter per option
    project: Annotated[str, typer.Argument(help="Id or name of the project.")],
    prompt: Annotated[
        str, typer.Argument(help="Message to the agent; - reads it from standard input.")
    ],
    agent: Annotated[
        str | None, typer.Option(metavar=choices.AGENT, help="Agent; else the project's.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model; else the project's.")] = None,
    autonomy: Annotated[
        str | None,
        typer.Option(
            metavar=choices.AUTONOMY,
            help="Actions allowed without a permission: off (all) to ask (none).",
        ),
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(help="Id of a workspace; else the project's default one.")
    ] = None,
    new_workspace: Annotated[
        bool, typer.Option("--new-workspace", help="Create a workspace for it.")
    ] = False,
    on_branch: Annotated[
        bool,
        typer.Option(
            "--on-branch", help="Work on a copy of the workspace, on a branch of its own."
        ),
    ] = False,
    go_on: Annotated[
        bool,
        typer.Option("--continue", help="Resume your latest session of the workspace, if any."),
    ] = False,
    new: Annotated[bool, typer.Option("--new", hidden=True)] = False,
    key_scope: Annotated[
        str | None,
        typer.Option(
            metavar=choices.SCOPE,
            help="Make a key of this scope for the agent, for Oubliette's tools.",
        ),
    ] = None,
    follow: Follow = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Start a session with a prompt."""
    spawned = call(
        home,
        "session_spawn",
        {
            "project_id": whole_id(home, "project", project),
            "prompt": _text(prompt),
            "agent": agent,
            "model": model,
            "autonomy": autonomy,
            "workspace_id": None if workspace is None else whole_id(home, "workspace", workspace),
            "create_workspace": new_workspace or None,
            "workspace": "branch" if on_branch else None,
            "new_session": new or not go_on or None,
            "api_key_scope": None if key_scope is None else whole_scope(home, key_scope),
        },
    )
    verb = "was started" if spawned["spawned"] else "continues"
    _accepted(home, spawned, f"The session {verb}.", output, follow=follow)


@app.command("message")
def message(  # noqa: PLR0917 - one parameter per option
    session_id: Annotated[
        str | None, typer.Argument(help="Id of the session, which may be abbreviated.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT", help="Message to the agent; - reads it from standard input."
        ),
    ] = None,
    last: Annotated[
        bool, typer.Option("--last", help="To the newest session, in place of one that is named.")
    ] = False,
    follow: Follow = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Send a message to a session; it is queued while a turn runs. A stopped one is resumed."""
    if session_id is None or last is (text is not None):
        raise typer.BadParameter("give SESSION_ID and TEXT, or --last and TEXT")
    if text is None:
        session_id, text = latest_session(home), session_id
    else:
        session_id = whole_id(home, "session", session_id)
    arguments = {"session_id": session_id, "message": _text(text)}
    try:
        spawned = call(home, "session_message", arguments)
    except OublietteError as error:
        raise explained(partial(call, home), session_id, error, "converse with it") from error
    said = "It is resumed." if spawned["resumed"] else "The message is queued."
    _accepted(home, spawned, said, output, follow=follow)


@ToolCommand(app, "interrupt", "session_interrupt", (SESSION,), "oubliette session interrupt 3k9x")
def interrupt(answer: Answer) -> None:
    """End the running turn of a session; the session stays."""
    session_id, status = answer.sent["session_id"], answer.done["status"]
    if status == "running":
        note(f"The running turn of {session_id} is being interrupted.")
    else:
        note(f"{session_id} is {status}: no turn runs.")


app.command("end")(end)


@app.command("logs")
def logs(  # noqa: PLR0917 - one parameter per option
    session_id: SessionId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until the session ends.")
    ] = False,
    after: Annotated[int, typer.Option(min=-1, help="Only events after this index.")] = -1,
    since: Annotated[float | None, SINCE_IN_LOGS] = None,
    children: Annotated[
        bool, typer.Option("--children", help="Include the events of its whole tree.")
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Show the transcript of a session; with -o json its events, one object per line."""
    from oubliette.cli.client import following

    session_id = whole_id(home, "session", session_id)
    following.log(
        home, session_id, output, follow=follow, after=after, since=since, children=children
    )


def _text(given: str) -> str:
    """Return the text given, or all of standard input for `-`."""
    return sys.stdin.read().removesuffix("\n") if given == "-" else given


def _accepted(
    home: str | None, spawned: dict[str, Any], said: str, output: Format, *, follow: bool
) -> None:
    """Print the session of the message; follow it to the end of its turns, if requested."""
    if output is Format.json:
        print_json(spawned)
    elif follow:
        note(f"{spawned['session_id']}: {said}")
    else:
        sys.stdout.write(spawned["session_id"] + "\n")
        note(said)
    if follow:
        from oubliette.cli.client import following

        following.follow(home, spawned["session_id"], spawned["last_index"], output)
