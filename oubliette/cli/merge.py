"""Commands `oubliette merge` and `push`: an agent's work in branches of repositories."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.client.calls import call
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import Format, Home, Output, clean, note, print_json

if TYPE_CHECKING:
    from pathlib import Path

SECONDS: Final = 900.0
"""Time for a merge, before which other work on the repository may have to end."""
CONFLICTS: Final = 1
"""Exit code where something conflicts."""
OwnCommits = Annotated[
    bool, typer.Option("--own-commits", help="Take the agent's commits, not one per turn.")
]
_VERSIONS: Final = {"base": "before", "ours": "branch", "theirs": "session"}


def merge(  # noqa: PLR0917 - one parameter per option
    session_id: Annotated[str, typer.Argument(help="Id of the session, which may be abbreviated.")],
    into: Annotated[
        str,
        typer.Option("--into", help="Branch of the project's repository; a new one is made."),
    ],
    squash: Annotated[bool, typer.Option("--squash", help="Make one commit.")] = False,
    rebase: Annotated[
        bool, typer.Option("--rebase", help="Make a commit per turn on top of the branch.")
    ] = False,
    own_commits: OwnCommits = False,
    turn: Annotated[
        str | None,
        typer.Option("--turn", help="As of the end of this turn, or a snapshot by its name."),
    ] = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Message of the merge or the commit.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the outcome, and change nothing.")
    ] = False,
    resolve: Annotated[
        bool, typer.Option("--resolve", help="Start an agent on the conflicts, if there are any.")
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Merge what a session has changed into a branch of the repository that its project has.

    No checkout is touched, and nothing is pushed. With conflicts nothing is merged, and the exit
    code is 1.
    """
    from oubliette.config.loader import find_home

    if squash and rebase:
        raise typer.BadParameter("--squash and --rebase exclude each other")
    session_id = whole_id(home, "session", session_id)
    arguments = {
        "session_id": session_id,
        "into": into,
        "strategy": "squash" if squash else "rebase" if rebase else "merge",
        "commits": "agent" if own_commits else "turns",
        "turn": turn,
        "message": message,
        "dry_run": dry_run,
        "resolve": "agent" if resolve else None,
    }
    done = call(home, "session_merge", arguments, SECONDS)
    if output is Format.json:
        print_json(done)
    else:
        show(done)
        if done["merged"] and not dry_run:
            project_id = call(home, "session_get", {"session_id": session_id})["project_id"]
            _show_ways_out(find_home(home) / "repositories" / project_id / "repository.git", done)
    if done["conflicts_count"]:
        raise typer.Exit(CONFLICTS)


def show(done: dict[str, Any]) -> None:
    """Print the answer of `session_merge` for a person."""
    for path, why in done["left_out"].items():
        note(f"left out: {path}: {why}")
    more = done["left_out_count"] - len(done["left_out"])
    if more > 0:
        note(f"and {more} more")
    if done["ignored_count"]:
        names = ", ".join(clean(each) for each in done["ignored"][:5])
        note(f"left out, as .gitignore names them: {done['ignored_count']} new files ({names})")
    if done["conflicts_count"]:
        _show_conflicts(done)
        return
    into = done["into"]
    if done["up_to_date"]:
        note(f"Nothing to merge: {into} has all that the session has changed.")
        return
    commits = "1 commit" if done["commits"] == 1 else f"{done['commits']} commits"
    files = "1 file" if done["files"] == 1 else f"{done['files']} files"
    what = f"{commits}, {files}"
    if done["insertions"] is not None:  # counting them does not take too long
        what += f", +{done['insertions']} -{done['deletions']} lines"
    new = " (a new branch)" if done["created"] else ""
    if done["dry_run"]:
        note(f"{into}{new} would get {what}.")
        return
    sys.stdout.write(f"{done['commit']}\n")
    note(f"{into}{new} has got {what}.")


def _show_ways_out(repository: Path, done: dict[str, Any]) -> None:
    """Print the commands that bring the branch to where a person wants it."""
    if repository.exists():  # otherwise another node of a cluster has it
        note(f"  take it   git fetch {shlex.quote(str(repository))} {shlex.quote(done['into'])}")
    note(f"  push it   oubliette push {done['session_id']} origin {shlex.quote(done['into'])}")


def _show_conflicts(done: dict[str, Any]) -> None:
    for each in done["conflicts"]:
        sys.stdout.write(f"{each['kind']}\t{clean(each['path'])}\n")
        for stage in each["stages"]:
            version = _VERSIONS.get(stage["stage"], stage["stage"])
            sys.stdout.write(f"\t{version}\t{stage['mode']} {stage['oid'][:12]}\n")
    more = done["conflicts_count"] - len(done["conflicts"])
    if more > 0:
        note(f"and {more} more")
    count = done["conflicts_count"]
    paths = "1 path conflicts" if count == 1 else f"{count} paths conflict"
    note(f"{paths} with {done['conflict_with']}; {done['into']} is as it was.")
    if done["resolving_session_id"] is not None:
        session_id = done["resolving_session_id"]
        note(f"Session {session_id} resolves them. When it has ended its turn:")
        note(f"  oubliette merge {session_id} --into {done['into']}")


QUIET_SECONDS: Final = 900.0
"""Time without progress of git."""
ORIGIN: Final = "origin"


def push(  # noqa: PLR0917 - one parameter per option
    session_id: Annotated[str, typer.Argument(help="Id of the session, which may be abbreviated.")],
    where: Annotated[
        list[str] | None,
        typer.Argument(metavar="[origin] BRANCH", help="Branch in the other repository."),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="The same.")] = None,
    branch: Annotated[
        str | None,
        typer.Option("--branch", help="Branch of the project's repository; else the same name."),
    ] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Push a branch of a session's project to the repository that the project was cloned from.

    A branch that the project's repository does not have is merged first, as by oubliette merge. The
    project has to consent: oubliette project update PROJECT --allow-push.
    """
    target = _target(where or [], to)
    arguments = {
        "session_id": whole_id(home, "session", session_id),
        "branch": branch or target,
        "to": target,
    }
    done = call(home, "session_push", arguments, QUIET_SECONDS, f"pushing {target}")
    if output is Format.json:
        print_json(done)
    elif done["conflicts_count"]:
        for each in done["conflicts"]:
            sys.stdout.write(f"{each['kind']}\t{clean(each['path'])}\n")
        note(f"{done['conflicts_count']} conflicts: nothing was merged or pushed.")
    elif done["up_to_date"]:
        note(f"{done['to']} of {clean(done['repository'])} has this commit already.")
    else:
        sys.stdout.write(f"{done['commit']}\n")
        new = " (a new branch)" if done["created"] else ""
        note(f"{done['branch']} was pushed to {done['to']}{new} of {clean(done['repository'])}.")
    if done["conflicts_count"]:
        raise typer.Exit(CONFLICTS)


def _target(where: list[str], to: str | None) -> str:
    """The name of the branch, which is given as an argument or as an option."""
    names = where[1:] if where[:1] == [ORIGIN] and len(where) > 1 else where
    given = [*names, *([] if to is None else [to])]
    if len(given) != 1:
        raise typer.BadParameter("give one branch: oubliette push SESSION origin BRANCH, or --to")
    return given[0]
