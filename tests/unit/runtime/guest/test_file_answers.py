"""What the files program answers is checked: agents could have written it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from oubliette.errors import (
    AlreadyExists,
    Conflict,
    InvalidParameter,
    NotFound,
    OublietteError,
    ProtocolViolation,
    RuntimeFailure,
)
from oubliette.incontainer.files.frames import HEAD
from oubliette.incontainer.files.places import REASONS
from oubliette.json_values import MAX_VALUES
from oubliette.runtime.guest import file_answers
from oubliette.runtime.guest.file_program import FileProgram
from oubliette.runtime.guest.process_stream import STDOUT, Output

GOOD: dict[str, Any] = {"kind": "folder", "modified": 1, "entries": [], "more": False}
ENTRY: dict[str, Any] = {"name": "x", "kind": "file", "modified": 1, "size": 2, "version": "v"}


def test_a_page_of_a_folder_has_names_in_bytes() -> None:
    page = file_answers.folder_page(
        {**GOOD, "entries": [{**ENTRY, "name": "\udce9"}], "more": True, "last": "\udce9"}
    )
    assert [entry.name for entry in page.entries] == [b"\xe9"]
    assert page.next == b"\xe9"


@pytest.mark.parametrize("year", [-290_000_000_000, 1, 1901, 2263, 2446, 9999, 290_000_000_000])
def test_a_folder_with_a_file_of_any_time_is_listed(year: int) -> None:
    seconds = (year - 1970) * 31_557_600
    page = file_answers.folder_page(
        {**GOOD, "entries": [{**ENTRY, "modified": seconds * 10**9}], "more": False}
    )
    assert [entry.modified for entry in page.entries] == [pytest.approx(seconds)]
    sent = msgspec.msgpack.encode(page)
    assert msgspec.msgpack.decode(sent, type=file_answers.FolderPage) == page


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "../x"},
        {"name": ""},
        {"name": ".."},
        {"name": 1},
        {"name": "\ud800"},
        {"kind": "wheel"},
        {"kind": []},
        {"size": -1},
        {"size": 1 << 64},
        {"size": True},
        {"modified": "now"},
        {"modified": 1 << 100},
        {"version": "v" * 300},
        {"target": 7},
    ],
)
def test_an_entry_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ProtocolViolation):
        file_answers.folder_page({**GOOD, "entries": [{**ENTRY, **wrong}]})


@pytest.mark.parametrize("wrong", [{}, {"deleted": None}, {"deleted": "1"}, {"deleted": -1}])
def test_a_number_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ProtocolViolation):
        file_answers.files_deleted(wrong)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("missing", NotFound),
        ("outside", InvalidParameter),
        ("exists", AlreadyExists),
        ("version", Conflict),
        ("no_upload", Conflict),
        ("never heard of", RuntimeFailure),
        (["a list"], RuntimeFailure),
    ],
)
def test_a_problem_becomes_the_error_that_it_is(reason: Any, kind: type[OublietteError]) -> None:
    error = file_answers.refusal({"problem": reason, "detail": "\x1b[31m" * 1000}, "a/b")
    assert type(error) is kind
    assert len(str(error)) < 300
    assert "\x1b" not in str(error)


def test_every_reason_of_the_program_has_words() -> None:
    for reason in {*REASONS.values(), "outside", "loop", "root", "no_workspace", "version"}:
        assert "failed" not in str(file_answers.refusal({"problem": reason}, "x"))
    assert file_answers.refusal({}, "x") is None


@pytest.mark.anyio
async def test_an_answer_of_too_many_values_is_refused_before_it_is_decoded() -> None:
    text = b'{"entries":[' + b"[]," * MAX_VALUES + b"1]}"

    class Stream:
        async def write(self, seq: int, data: bytes) -> None:
            pass

        async def read(self) -> Output:
            return Output(STDOUT, 0, HEAD.pack(len(text), 0) + text)

    program = FileProgram(
        cast("Any", None), cast("Any", SimpleNamespace()), "p", cast("Any", Stream())
    )
    with pytest.raises(ProtocolViolation, match=f"more than {MAX_VALUES} values"):
        await program.ask({}, b"", seconds=1.0)
