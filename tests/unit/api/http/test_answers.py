"""Server-sent events as they arrive in pieces, and the tables of calls that may be repeated."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oubliette.api.http import repeatable
from oubliette.api.http.answers import EventData, json_object
from oubliette.tools.registry import TABLE

LINES = st.sampled_from(["\n", "\r\n"])
DATA = st.lists(
    st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), min_size=1, max_size=3
)


@given(st.lists(st.tuples(DATA, LINES)), st.lists(st.integers(0, 400)))
def test_events_are_the_same_however_their_bytes_are_cut(
    events: list[tuple[list[str], str]], cuts: list[int]
) -> None:
    text = "".join(
        f": comment{end}id: 7{end}{''.join(f'data: {line}{end}' for line in lines)}{end}"
        for lines, end in events
    ).encode()
    parser = EventData()
    places = sorted(min(cut, len(text)) for cut in [0, *cuts, len(text)])
    found = [
        data
        for start, end in zip(places, places[1:], strict=False)
        for data in parser.feed(text[start:end])
    ]
    assert found == ["\n".join(lines).encode() for lines, _ in events]


@given(st.binary())
def test_bytes_that_are_no_json_are_no_object(data: bytes) -> None:
    assert json_object(data) is None or data.strip().startswith(b"{")


def test_reading_tools_are_those_that_the_server_declares() -> None:
    assert {tool.name for tool in TABLE.values() if tool.read_only} == repeatable.READS


def test_tools_with_a_key_are_those_that_the_server_declares() -> None:
    assert {tool.name for tool in TABLE.values() if tool.idempotent} == repeatable.KEYED


def test_the_other_tables_name_tools_of_the_server() -> None:
    assert repeatable.ANSWERS | repeatable.LISTENS <= TABLE.keys()


@given(st.sampled_from(sorted(TABLE)))
def test_a_call_may_be_repeated_only_where_that_has_no_second_effect(tool: str) -> None:
    found = TABLE[tool]
    harmless = found.read_only or found.streamed or tool.endswith("_response")
    assert repeatable.may_repeat(tool, {}) == harmless
    assert repeatable.may_repeat(tool, repeatable.with_key(tool, {})) == (
        harmless or found.idempotent
    )
