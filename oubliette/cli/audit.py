"""`oubliette audit`: who called what (DESIGN 5, 10). Reads the files; needs no server."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer

from oubliette.cli.output import Format, Home, Output, moment, print_json, print_table
from oubliette.cli.times import SINCE
from oubliette.errors import InvalidParameter, NotFound

if TYPE_CHECKING:
    from oubliette.runtime.audit import AuditEntry


def audit(  # noqa: PLR0917 - one parameter per option
    tail: Annotated[int, typer.Option("--tail", "-n", min=1, help="At most so many.")] = 100,
    since: Annotated[float | None, SINCE] = None,
    principal: Annotated[str | None, typer.Option(help="Only of this principal.")] = None,
    token_id: Annotated[str | None, typer.Option("--token-id", help="Only with this key.")] = None,
    session: Annotated[str | None, typer.Option(help="Only by this session, or about it.")] = None,
    project: Annotated[str | None, typer.Option(help="Only about this project.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only of this tool.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only what was refused.")] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Show who called what, and how it ended: newest last."""
    from oubliette.config import find_home
    from oubliette.runtime.audit import FILE_NAME, read

    folder = find_home(home)
    if not (folder / FILE_NAME).exists():
        raise NotFound(
            f"{folder} has no audit log yet", hint="oubliette serve writes it, with each call"
        )

    def wanted(entry: AuditEntry) -> bool:
        return (
            entry.ts >= (since or 0.0)
            and principal in {None, entry.principal}
            and token_id in {None, entry.token_id}
            and session in {None, entry.session_id, entry.target_session_id}
            and project in {None, entry.project_id}
            and tool in {None, entry.tool}
            and not (failed and entry.outcome == "ok")
        )

    try:
        found = deque((entry for entry in read(folder) if wanted(entry)), maxlen=tail)
    except PermissionError as error:
        raise InvalidParameter(
            f"{error.filename} is not yours to read", hint="run it as the server's user"
        ) from error
    if output is Format.json:
        import msgspec

        for entry in found:
            print_json(msgspec.to_builtins(entry))
        return
    print_table(
        ("WHEN", "PRINCIPAL", "KEY", "DOOR", "SESSION", "TOOL", "PROJECT", "OUTCOME", "MS"),
        [
            (
                moment(entry.ts),
                entry.principal,
                entry.token_id,
                entry.door,
                entry.session_id or entry.target_session_id or "",
                entry.tool,
                entry.project_id or "",
                entry.outcome,
                f"{entry.seconds * 1000:.1f}",
            )
            for entry in found
        ],
    )
