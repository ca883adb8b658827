"""Tool `session_diff`: what an agent has changed in its workspace."""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from oubliette.contract import field_types
from oubliette.contract.changes import DiffPage, FileDiff
from oubliette.contract.field_types import Params
from oubliette.errors import InvalidParameter
from oubliette.runtime.snapshots.history_records import DiffAnswer, DiffQuestion
from oubliette.runtime.snapshots.snapshot_names import DiffRange
from oubliette.tools.handlers.repository.agent_commits import ask_history
from oubliette.tools.handlers.sessions import visible_session
from oubliette.tools.schema import response_size
from oubliette.tools.spec import tool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oubliette.runtime.snapshots.history_records import FileChange
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

PIECE: Final = 200_000
"""Maximum bytes of a patch in one answer."""
_OBJECT: Final = re.compile(r"[0-9a-f]{40}")

DiffPoint = (
    Annotated[int, Meta(ge=0, le=2**31)] | Annotated[str, Meta(min_length=1, max_length=100)]
)
Path = Annotated[str, Meta(min_length=1, max_length=4096)]


Totals = tuple[int, int, int, int]
"""Files, insertions, deletions, binary files."""


class SessionDiff(Params, frozen=True, kw_only=True):
    """Parameters of `session_diff`."""

    session_id: Annotated[field_types.SessionId, Meta(description="Id of the session.")]
    turn: Annotated[
        Annotated[int, Meta(ge=1, le=2**31)] | None,
        Meta(description="Only the changes of this turn; then without from_turn and to_turn."),
    ] = None
    from_turn: Annotated[
        DiffPoint | None,
        Meta(
            description="State before the changes: the end of this turn, or a snapshot by its name"
            " in session_log. Unset or 0: before the session's first turn."
        ),
    ] = None
    to_turn: Annotated[
        DiffPoint | None,
        Meta(description="State after them, given likewise. Unset: the newest snapshot."),
    ] = None
    format: Annotated[
        Literal["patch", "stat", "names"],
        Meta(description="patch: its text; stat: files with their lines; names: files alone."),
    ] = "patch"
    paths: Annotated[
        tuple[Path, ...],
        Meta(max_length=100, description="Only these files and folders of the workspace."),
    ] = ()
    ignored: Annotated[
        bool, Meta(description="Also files that .gitignore names and that came after the start.")
    ] = False
    cursor: Annotated[
        Annotated[str, Meta(max_length=1000)] | None,
        Meta(description="next_cursor of the previous page; the other arguments as for that."),
    ] = None


class DiffPlace(msgspec.Struct, frozen=True, array_like=True):
    """Place in a long diff, as its cursor has it: later snapshots do not move it."""

    old: str
    new: str
    old_name: str | None
    new_name: str | None
    totals: Totals
    offset: Annotated[int, Meta(ge=0, le=2**53)]
    """Byte of the patch, or number of files."""


@tool(SessionDiff, DiffPage, scope="read", read_only=True, runs_on="needed")
async def session_diff(
    services: ToolServices, context: CallContext, params: SessionDiff
) -> DiffPage:
    """Show what has changed in a session's workspace between two of its snapshots.

    Without turns, that is all from before its first turn to its newest snapshot.
    """
    session = await visible_session(services, context, params.session_id)
    if params.turn is not None and not (params.from_turn is None and params.to_turn is None):
        raise InvalidParameter("turn: give either turn, or from_turn and to_turn", field="turn")
    place = None if params.cursor is None else _place(params.cursor)
    as_patch = params.format == "patch"
    question = DiffQuestion(
        session_id=session.id,
        turn=params.turn,
        from_turn=params.from_turn,
        to_turn=params.to_turn,
        between=None if place is None else _between(place),
        paths=params.paths,
        ignored=params.ignored,
        listed=place is None or not as_patch,
        patch=as_patch,
        offset=0 if place is None else place.offset,
        most=PIECE,
    )
    answer = await ask_history(services, session, question)
    assert isinstance(answer, DiffAnswer)
    if answer.between is None:  # the workspace always was empty
        return _page(session.id, answer, None, patch="" if as_patch else None)
    totals = _totals(answer.changes) if place is None else place.totals
    start = DiffPlace(
        answer.between.old,
        answer.between.new,
        answer.between.old_name,
        answer.between.new_name,
        totals,
        0 if place is None else place.offset,
    )
    if as_patch:
        text, used = text_piece(answer.patch, last=not answer.more)
        more = answer.more or used < len(answer.patch)
        return _page(session.id, answer, start, patch=text, used=used if more else None)
    views, _, cut = response_size.fitting(
        _view(each, counted=params.format == "stat") for each in answer.changes[start.offset :]
    )
    return _page(session.id, answer, start, changes=tuple(views), used=len(views) if cut else None)


def _page(
    session_id: str,
    answer: DiffAnswer,
    place: DiffPlace | None,
    *,
    changes: tuple[FileDiff, ...] = (),
    patch: str | None = None,
    used: int | None = None,
) -> DiffPage:
    """Return a page; `used` is what of the rest it has, None: all."""
    files, insertions, deletions, binary = (0, 0, 0, 0) if place is None else place.totals
    following = None
    if place is not None and used is not None:
        following = cursor_of(msgspec.structs.replace(place, offset=place.offset + used))
    return DiffPage(
        session_id=session_id,
        from_snapshot=None if place is None else place.old_name,
        to_snapshot=None if place is None else place.new_name,
        files=files,
        insertions=insertions,
        deletions=deletions,
        binary_files=binary,
        changes=changes,
        patch=patch,
        left_out_count=answer.left_out_count,
        left_out=answer.left_out,
        ignored_count=0 if answer.between is None else answer.between.ignored,
        next_cursor=following,
    )


def text_piece(data: bytes, *, last: bool) -> tuple[str, int]:
    """Return the beginning of a patch that fits into a message, and its bytes.

    It ends with a line, unless one line is longer than a message.

    Args:
        data: The patch, from a place on.
        last: Whether nothing comes after it.
    """
    most = len(data)
    while True:
        piece = data[:most]
        whole = last and most == len(data)
        if not whole and (end := piece.rfind(b"\n") + 1):
            piece = piece[:end]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(piece, final=whole)
        used = len(piece) - len(decoder.getstate()[0])  # not the beginning of a character
        if response_size.cost(text) <= response_size.MAX_PARTS:
            return text, used
        most = len(piece) // 2


def _totals(changes: Sequence[FileChange]) -> Totals:
    return (
        len(changes),
        sum(each.insertions or 0 for each in changes),
        sum(each.deletions or 0 for each in changes),
        sum(each.insertions is None for each in changes),
    )


def _view(change: FileChange, *, counted: bool) -> FileDiff:
    return FileDiff(
        path=change.path,
        status=change.status,
        insertions=change.insertions if counted else None,
        deletions=change.deletions if counted else None,
        binary=change.insertions is None if counted else None,
    )


def cursor_of(place: DiffPlace) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()


def _place(cursor: str) -> DiffPlace:
    try:
        place = msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=DiffPlace)
    except (msgspec.DecodeError, binascii.Error, ValueError):
        place = None
    if place is None or not (_OBJECT.fullmatch(place.old) and _OBJECT.fullmatch(place.new)):
        raise InvalidParameter(
            "cursor: give next_cursor of the previous page, or leave it out", field="cursor"
        )
    return place


def _between(place: DiffPlace) -> DiffRange:
    return DiffRange(old=place.old, new=place.new, old_name=place.old_name, new_name=place.new_name)
