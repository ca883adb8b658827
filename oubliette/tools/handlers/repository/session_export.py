"""Tool `session_export`: what an agent has changed, as a file for git."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.errors import InvalidParameter
from oubliette.runtime.snapshots.history_records import (
    DiffAnswer,
    DiffQuestion,
    ExportQuestion,
    PieceAnswer,
    PieceQuestion,
)
from oubliette.tools.handlers.repository.agent_commits import ask_history
from oubliette.tools.handlers.repository.session_diff import DiffPoint, Path
from oubliette.tools.handlers.sessions import visible_session
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

PIECE: Final = 300_000
"""Maximum bytes of a piece, which is in a message twice, in base64."""
EMPTY_SHA256: Final = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class SessionExport(Params, frozen=True, kw_only=True):
    """Parameters of `session_export`."""

    session_id: Annotated[field_types.SessionId, Meta(description="Id of the session.")]
    format: Annotated[
        Literal["patch", "bundle"],
        Meta(
            description="patch: for git apply; bundle: all snapshots of the session, for git fetch."
        ),
    ] = "patch"
    turn: Annotated[
        Annotated[int, Meta(ge=1, le=2**31)] | None,
        Meta(description="Of a patch: only the changes of this turn."),
    ] = None
    from_turn: Annotated[DiffPoint | None, Meta(description="Of a patch: as for session_diff.")] = (
        None
    )
    to_turn: Annotated[DiffPoint | None, Meta(description="Of a patch: as for session_diff.")] = (
        None
    )
    paths: Annotated[
        tuple[Path, ...],
        Meta(max_length=100, description="Of a patch: only these files and folders."),
    ] = ()
    ignored: Annotated[
        bool, Meta(description="Of a patch: as for session_diff; a bundle has all files.")
    ] = False
    cursor: Annotated[
        Annotated[str, Meta(max_length=500)] | None,
        Meta(description="next_cursor of the previous piece."),
    ] = None


class ExportPiece(Result, frozen=True, kw_only=True):
    """Result of `session_export`; the first piece describes the whole file."""

    session_id: str
    format: str
    data: Annotated[str, Meta(description="A piece of the file, in base64.")]
    size: Annotated[int, Meta(description="Bytes of the whole file.")]
    sha256: Annotated[str, Meta(description="Of the whole file, in hexadecimal.")]
    left_out_count: Annotated[
        int, Meta(description="Files that a patch lacks, as no snapshot has their content.")
    ]
    left_out: dict[str, str]
    ignored_count: Annotated[
        int, Meta(description="Files that a patch lacks, as .gitignore names them.")
    ]
    next_cursor: str | None


class FilePlace(msgspec.Struct, frozen=True, array_like=True):
    """Place in an exported file, as a cursor has it."""

    file: str
    offset: Annotated[int, Meta(ge=0, le=2**53)]
    size: Annotated[int, Meta(ge=0, le=2**53)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


@tool(SessionExport, ExportPiece, scope="read", read_only=True, runs_on="needed")
async def session_export(
    services: ToolServices, context: CallContext, params: SessionExport
) -> ExportPiece:
    """Return what a session has changed as a patch, or its snapshots as a bundle, by pieces.

    Read on with next_cursor within half an hour. The file has 1 GiB at most.
    """
    session = await visible_session(services, context, params.session_id)
    if params.turn is not None and not (params.from_turn is None and params.to_turn is None):
        raise InvalidParameter("turn: give either turn, or from_turn and to_turn", field="turn")
    place = None if params.cursor is None else _place(params.cursor)
    asked = DiffQuestion(
        session_id=session.id,
        turn=params.turn,
        from_turn=params.from_turn,
        to_turn=params.to_turn,
        paths=params.paths,
        ignored=params.ignored,
    )
    question = (
        ExportQuestion(format=params.format, range=asked, most=PIECE)
        if place is None
        else PieceQuestion(file=place.file, offset=place.offset, most=PIECE)
    )
    answer = await ask_history(services, session, question)
    if isinstance(answer, DiffAnswer):  # the workspace has always been empty
        answer = PieceAnswer(file="", size=0, sha256=EMPTY_SHA256, data=b"")
    assert isinstance(answer, PieceAnswer)
    if place is None:
        place = FilePlace(answer.file, 0, answer.size, answer.sha256)
    end = place.offset + len(answer.data)
    more = end < place.size and bool(answer.data)
    following = msgspec.structs.replace(place, offset=end)
    return ExportPiece(
        session_id=session.id,
        format=params.format,
        data=base64.b64encode(answer.data).decode(),
        size=place.size,
        sha256=place.sha256,
        left_out_count=answer.left_out_count,
        left_out=answer.left_out,
        ignored_count=0 if answer.between is None else answer.between.ignored,
        next_cursor=(
            base64.urlsafe_b64encode(msgspec.json.encode(following)).decode() if more else None
        ),
    )


def _place(cursor: str) -> FilePlace:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=FilePlace)
    except (msgspec.DecodeError, binascii.Error, ValueError):
        raise InvalidParameter(
            "cursor: give next_cursor of the previous piece, or leave it out", field="cursor"
        ) from None
