"""Commands `oubliette restore`, `fork` and `home adopt`: older states of sessions, and a home."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from oubliette.cli.client.calls import call
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal import choices
from oubliette.cli.terminal.output import Format, Home, Output, clean, note, print_json
from oubliette.errors import InvalidParameter, OublietteError

SECONDS: Final = 600.0
"""Time for a restore, before which the server stores what is there."""


def restore(  # noqa: PLR0917 - one parameter per option
    session_id: Annotated[
        str | None,
        typer.Argument(help="Id of a session; without it, the command is home adopt."),
    ] = None,
    turn: Annotated[
        str | None,
        typer.Option("--turn", help="The end of this turn, or a snapshot by its name: 1-start."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", help="The checkpoint that was given this name."),
    ] = None,
    discard: Annotated[
        str | None, typer.Option("--discard", help="Consent to a loss, as a refusal names it.")
    ] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Bring back an older state of a session's workspace; what is there is stored before.

    Without a session it is oubliette home adopt.
    """
    if session_id is None:
        if any(each is not None for each in (turn, checkpoint, discard)):
            raise InvalidParameter(
                "SESSION: is required with --turn, --checkpoint and --discard", field="session_id"
            )
        if output is Format.text:
            note("The name of this command is oubliette home adopt; restore is another one for it.")
        adopt(force=False, home=home, output=output)
        return
    if (turn is None) == (checkpoint is None):
        raise InvalidParameter(
            "--turn: is required, or --checkpoint; oubliette call session_log session_id=… lists"
            " the snapshots",
            field="turn",
        )
    point = {"turn": turn, "checkpoint": checkpoint, "discard": discard}
    point["session_id"] = whole_id(home, "session", session_id)
    done = call(home, "session_restore", point, SECONDS)
    if output is Format.json:
        print_json(done)
        return
    note(
        f"The files of {done['restored']} are back: {done['written']} written,"
        f" {done['removed']} removed."
    )
    if done["missing_count"]:
        shown = "; ".join(f"{path}: {why}" for path, why in done["missing"].items())
        note(f"{done['missing_count']} files are not as they were: {shown}")
    if done["kept_as"] is not None:
        note(
            f"What was there is kept: oubliette restore {done['session_id']}"
            f" --turn {done['kept_as']}"
        )


home_app = typer.Typer(help="The folder of a server.", no_args_is_help=True)


@home_app.command("adopt")
def adopt(
    *,
    force: Annotated[
        bool,
        typer.Option("--force", help="Do it to an original too: what runs in its containers ends."),
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Give the copy of a home an identity of its own.

    The agents of the original home stay with it. A session that was running when the copy was made
    is resumed by its next message.
    """
    import asyncio

    from oubliette.cli.client.offline import take_identity
    from oubliette.cli.terminal import logging_config
    from oubliette.config.loader import find_home

    logging_config.configure("warning", as_json=output is Format.json)
    place = find_home(home)
    instance = asyncio.run(take_identity(place, force=force))
    if output is Format.json:
        print_json({"home": str(place), "instance": instance})
        return
    note(f"{place} has the new identity {instance}; a server can run on it beside the original.")


FORK_SECONDS: Final = 600.0
"""Time for one fork, for which a repository may have to be copied."""


def fork(  # noqa: PLR0917 - one parameter per option
    session_id: Annotated[str, typer.Argument(help="Id of a session, which may be abbreviated.")],
    prompt: Annotated[
        str, typer.Argument(help="First message to each agent; - reads it from standard input.")
    ],
    at: Annotated[
        str | None,
        typer.Option("--at", help="The end of this turn, or a snapshot by its name: 1-start."),
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Number of new sessions.")] = 1,
    large_files: Annotated[
        bool,
        typer.Option("--large-files", help="Copy files too that are too large for snapshots."),
    ] = False,
    agent: Annotated[
        str | None, typer.Option(metavar=choices.AGENT, help="Agent; else that of the session.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model; else that of the session.")] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Start sessions with the files and the conversation of a session at a turn.

    Their ids are printed, one a line. Each has a workspace of its own. The exit code is 1 if one of
    them was not started.
    """
    done = call(
        home,
        "session_fork",
        {
            "session_id": whole_id(home, "session", session_id),
            "prompt": sys.stdin.read() if prompt == "-" else prompt,
            "at_turn": at,
            "count": count,
            "large_files": large_files,
            "agent": agent,
            "model": model,
        },
        FORK_SECONDS * count,
    )
    failed = [each["error"] for each in done["sessions"] if each["error"] is not None]
    started = [each for each in done["sessions"] if each["error"] is None]
    if output is Format.json:
        print_json(done)
    else:
        for each in started:
            sys.stdout.write(each["session_id"] + "\n")
        if started:
            _tell(done, started[0])
    if failed:
        raise OublietteError(
            f"{len(failed)} of {count} sessions were not started: {failed[0]['message']}",
            hint=failed[0]["hint"],
        )


def _tell(done: dict[str, Any], first: dict[str, Any]) -> None:
    """Print what the sessions begin with, on stderr."""
    files = f"the files of {done['forked_at']}" if done["forked_at"] else "an empty workspace"
    knows = (
        "their agents know"
        if first["conversation"] == "native"
        else "their agents have a record of"
    )
    note(f"They begin with {files}; {knows} the conversation up to turn {done['forked_at_turn']}.")
    if first["missing_count"]:
        shown = "; ".join(f"{path}: {why}" for path, why in first["missing"].items())
        note(f"{first['missing_count']} files are not as they were: {clean(shown)}")
