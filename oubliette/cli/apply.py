"""Commands `oubliette apply` and `drop`: what an agent has changed comes to a checkout, or goes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.client.calls import call
from oubliette.cli.client.exported import left_out_note, write_exported
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import Format, Home, Output, confirm, note, print_json
from oubliette.cli.terminal.turn_options import FROM_TURN, IGNORED, TO_TURN, TURN
from oubliette.errors import Conflict, Unavailable
from oubliette.user_paths import working_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

GIT_SECONDS: Final = 120.0
_SHOWN: Final = 10
"""Files that an error names."""


def apply(  # noqa: PLR0917 - one parameter per option
    session_id: Annotated[str, typer.Argument(help="Id of the session, which may be abbreviated.")],
    turn: Annotated[int | None, TURN] = None,
    from_turn: Annotated[str | None, FROM_TURN] = None,
    to_turn: Annotated[str | None, TO_TURN] = None,
    ignored: Annotated[bool, IGNORED] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Apply what a session has changed to the git checkout of the current folder.

    All of it, or nothing: if it does not fit, or files that it changes have changes of your own,
    the checkout stays as it is. Nothing is staged or committed.
    """
    import tempfile

    arguments = {
        "session_id": whole_id(home, "session", session_id),
        "turn": turn,
        "from_turn": from_turn,
        "to_turn": to_turn,
        "ignored": ignored,
    }
    top = _top()
    with tempfile.TemporaryFile(buffering=0) as patch:  # its place is that of its descriptor
        done = write_exported(home, {**arguments, "format": "patch"}, patch)
        files = _files(top, patch)
        if files:
            _check_clean(top, files)
            _check_fits(top, patch)
            _git(top, "apply", "--binary", "--whitespace=nowarn", given=patch)
    if output is Format.json:
        print_json({"folder": str(top), "files": files, "left_out": done["left_out"]})
        return
    if (left_out := left_out_note(done)) is not None:
        note(left_out)
    if not files:
        note("nothing has changed")
        return
    count = "1 file" if len(files) == 1 else f"{len(files)} files"
    note(f"Changed in {top}: {count}. git diff and git status show it.")


def _top() -> Path:
    try:
        done = _run(working_folder(), "rev-parse", "--show-toplevel")
    except FileNotFoundError:
        raise Unavailable("git is not installed here", hint="install git") from None
    if done.returncode != 0:
        raise Conflict(
            f"{working_folder()} is in no git checkout",
            hint="change into one, or write a patch: oubliette export SESSION FILE.patch",
        )
    return Path(done.stdout.decode(errors="surrogateescape").removesuffix("\n"))


def _files(top: Path, patch: Any) -> list[str]:
    if patch.tell() == 0:
        return []
    listed = _git(top, "apply", "--numstat", "-z", given=patch)
    lines = listed.decode(errors="surrogateescape").split("\0")[:-1]
    return [line.split("\t", 2)[2] for line in lines]


def _check_clean(top: Path, files: Sequence[str]) -> None:
    """Check that none of these files has changes that are not committed.

    Raises:
        Conflict: some have; names them.
    """
    status = _git(top, "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
    lines = status.decode(errors="surrogateescape").split("\0")[:-1]
    dirty = sorted({line[3:] for line in lines} & set(files))
    if dirty:
        more = f" and {len(dirty) - _SHOWN} more" if len(dirty) > _SHOWN else ""
        raise Conflict(
            f"these files have changes of your own: {', '.join(dirty[:_SHOWN])}{more}",
            hint="commit or stash them first",
        )


def _check_fits(top: Path, patch: Any) -> None:
    """Check that a patch can be applied as a whole.

    Raises:
        Conflict: it cannot; has git's reasons.
    """
    patch.seek(0)
    done = _run(top, "apply", "--check", "--binary", "--whitespace=nowarn", given=patch)
    if done.returncode != 0:
        reasons = done.stderr.decode(errors="replace").strip().splitlines()[:_SHOWN]
        raise Conflict(
            "the changes do not fit this checkout, and nothing was changed: " + "; ".join(reasons),
            hint="check out the commit with which the session began, or take the patch with"
            " oubliette export and apply it with git apply --3way",
        )


def _git(top: Path, *arguments: str, given: Any = None) -> bytes:
    if given is not None:
        given.seek(0)
    done = _run(top, *arguments, given=given)
    if done.returncode != 0:
        raise Conflict(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _run(folder: Path, *arguments: str, given: Any = None) -> subprocess.CompletedProcess[bytes]:
    """Run git as the user's own program, with the user's configuration."""
    return subprocess.run(
        ["git", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL if given is None else given,
        capture_output=True,
        timeout=GIT_SECONDS,
        check=False,
    )


def drop(
    session_id: Annotated[str, typer.Argument(help="Id of the session, which may be abbreviated.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing at a terminal.")] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """End a session with its children, and delete its workspace.

    Its log stays, and so do the snapshots of the workspace until the project is deleted.
    """
    session_id = whole_id(home, "session", session_id)
    found = call(home, "session_get", {"session_id": session_id})
    project = call(home, "project_get", {"project_id": found["project_id"]})
    if found["workspace_id"] == project["default_workspace_id"]:
        raise Conflict(
            f"{session_id} works in the default workspace of project {project['name']}, which"
            " stays as long as the project",
            hint=f"oubliette session end {session_id} ends it; oubliette restore {session_id}"
            " --turn 1-start brings back the files from before it",
        )
    confirm(f"End {session_id} ({found['title']}) and delete its workspace?", yes=yes)
    call(home, "session_end", {"session_id": session_id, "tree": True})
    arguments: dict[str, Any] = {
        "project_id": found["project_id"],
        "workspace_id": found["workspace_id"],
    }
    deleted = call(home, "workspace_delete", arguments)
    if output is Format.json:
        print_json({"session_id": session_id, **deleted})
        return
    note(f"{session_id} has ended, and its workspace {found['workspace_id']} is deleted.")
