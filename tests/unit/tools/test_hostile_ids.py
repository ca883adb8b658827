"""Ids and paths at the door: what is none is refused, whatever it tries."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette import ids
from oubliette.contract.validation import decode
from oubliette.errors import InvalidParameter, NotFound
from oubliette.tools.registry import TABLE, input_schema
from tests.unit.tools.test_registry import GOOD

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

ANSWERING = ("caller_tool_progress", "caller_tool_response", "permission_response")
"""What they name is either an open request or not: one answer for whatever is none."""
PLACES = [
    (tool.name, name)
    for tool in TABLE.values()
    for name in input_schema(tool)["properties"]
    if name.endswith("_id") and name not in {"external_id", "request_id"}
    if (tool.name, name) not in {(answering, "session_id") for answering in ANSWERING}
]
PREFIXES = {
    "project_id": ids.PROJECT,
    "session_id": ids.SESSION,
    "token_id": ids.TOKEN,
    "exploration_id": ids.EXPLORATION,
}
GOOD_ID = "proj_11111111111111111111111111"
HOSTILE = [
    "",
    " ",
    "..",
    "../..",
    "../../etc/passwd",
    "/etc/passwd",
    "//etc",
    "~root",
    "C:\\windows",
    "..\\..\\x",
    "%2e%2e%2f",
    ".",
    "*",
    "proj_*",
    "x\x00y",
    f"{GOOD_ID}\x00",
    f"{GOOD_ID}\n",
    f"{GOOD_ID} ",
    f" {GOOD_ID}",
    f"{GOOD_ID}/..",
    f"{GOOD_ID}/../{GOOD_ID}",
    f"./{GOOD_ID}",
    GOOD_ID.upper(),
    GOOD_ID[:-1],
    f"{GOOD_ID}1",
    f"proj-{'1' * 26}",
    f"proj_{'1' * 25}\u0661",  # an Arabic digit one
    f"proj_{'1' * 25}\uff11",  # a full-width digit one
    f"\u202e{GOOD_ID}",  # right-to-left override
    f"pr\u043ej_{'1' * 26}",  # a Cyrillic o
    "\ufeff" + GOOD_ID,
    unicodedata.normalize("NFD", "é" * 13),
    "a" * 300,
    "é" * 300,
    "a" * 100_000,
    "$(touch planted)",
    "`id`",
    "'; DROP TABLE sessions; --",
    "${HOME}",
    "%s%n",
    "-rf",
    "--help",
    "con",
    "/proc/self/environ",
    "file:///etc/passwd",
    "\ud800",
]


def arguments(tool: str, field: str, value: Any) -> dict[str, Any]:
    required = {name: GOOD[name] for name in input_schema(TABLE[tool])["required"]}
    return {**required, field: value}


@pytest.mark.parametrize(("tool", "field"), PLACES)
def test_what_is_no_id_is_refused_by_the_name_of_its_field(tool: str, field: str) -> None:
    for value in HOSTILE:
        if field == "caller_id" and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", value, re.ASCII):
            continue  # a caller may call itself that
        with pytest.raises(InvalidParameter, match=field) as refused:
            decode(TABLE[tool].params, arguments(tool, field, value), tool)
        assert refused.value.field == field
        # What was sent is shown cut and escaped, if at all: an error ends in logs and terminals.
        assert len(str(refused.value)) < 500
        assert not re.search(
            r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]",
            str(refused.value),
        )


@given(st.sampled_from(PLACES), st.text(max_size=60))
def test_any_text_is_an_id_of_the_right_form_or_refused(place: tuple[str, str], text: str) -> None:
    tool, field = place
    try:
        decode(TABLE[tool].params, arguments(tool, field, text), tool)
    except InvalidParameter as error:
        assert error.field == field
        return
    if field == "caller_id":
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", text, re.ASCII)
    elif field == "workspace_id":
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text, re.ASCII)
    else:
        assert re.fullmatch(rf"{PREFIXES[field]}_[0-9a-z]{{26}}", text, re.ASCII)


@pytest.mark.anyio
async def test_ids_of_any_form_find_no_request_and_break_nothing(bench: Bench) -> None:
    project = await bench.project()
    session = await bench.session(project, live=True)
    bench.open_requests.add("open")
    for value in HOSTILE:
        for tool, more in zip(
            ANSWERING, ({"message": "m"}, {}, {"decision": "allow"}), strict=True
        ):
            for named in (
                {"session_id": session.id, "request_id": value},
                {"session_id": value, "request_id": "open"},
                {"session_id": value, "request_id": value},
            ):
                result = await bench.call(tool, {**named, **more})
                assert result.is_error
                if value == "\ud800" or len(value) > 64 * 1024:
                    assert result.code == "invalid_parameter"  # no text, or no end of it
                else:
                    assert result.text == "request not found or already resolved", named
    assert "open" in bench.open_requests


PATHS = [
    "../..",
    "etc",
    "/workspace/../etc",
    "~",
    "a/../../..",
    "/x\x00",
    "\ud800",
    "/" + "a" * 5000,
]


@pytest.mark.anyio
@pytest.mark.parametrize("value", PATHS)
async def test_a_folder_that_is_no_plain_absolute_path_is_refused(bench: Bench, value: str) -> None:
    project = await bench.project()
    result = await bench.call(
        "container_exec",
        {"project_id": project.id, "command": "true", "working_dir": value},
    )
    assert result.code == "invalid_parameter"
    assert "working_dir" in result.text


@pytest.mark.anyio
@pytest.mark.parametrize("read", ["project_named", "session", "request", "workspace", "token"])
async def test_no_text_with_nul_reaches_the_database(bench: Bench, read: str) -> None:
    """PostgreSQL refuses it with an error of its own."""
    for value in ("\0", "a\0", "\0a"):
        with pytest.raises(NotFound, match="the character NUL"):
            await getattr(bench.reader, read)(value)
    assert await getattr(bench.reader, read)("a") is None
