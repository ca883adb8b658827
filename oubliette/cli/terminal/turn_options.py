"""Options of commands that show or take the changes of a session."""

from __future__ import annotations

import typer

TURN = typer.Option("--turn", min=1, help="Only the changes of this turn.")
FROM_TURN = typer.Option(
    "--from", help="State before: the end of a turn, or a snapshot by its name."
)
TO_TURN = typer.Option("--to", help="State after: likewise; else the newest snapshot.")
IGNORED = typer.Option("--ignored", help="Also files that .gitignore names.")
