"""Tools about snapshots say what is missing where none are taken, and what is wrong in arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from oubliette.config.schema import SnapshotsConfig
from oubliette.tools.handlers.session_diff import text_piece
from oubliette.tools.schema import response_size

if TYPE_CHECKING:
    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio

ABOUT_ONE: list[tuple[str, dict[str, Any]]] = [
    ("session_log", {}),
    ("session_diff", {}),
    ("session_export", {}),
    ("checkpoint", {}),
    ("session_restore", {"turn": 1}),
    ("session_fork", {"prompt": "say hi"}),
    ("session_merge", {"into": "work"}),
]


@pytest.mark.parametrize(("tool", "more"), ABOUT_ONE)
async def test_without_snapshots_the_setting_is_named(
    bench: Bench, tool: str, more: dict[str, Any]
) -> None:
    off = replace(bench.services.config, snapshots=SnapshotsConfig(mode="off"))
    bench.services.config = off
    session = await bench.session(await bench.project())
    refused = await bench.call(tool, {"session_id": session.id, **more})
    assert refused.code == "conflict"
    assert "snapshots.mode is off" in refused.text
    assert 'set mode = "on" in [snapshots]' in refused.text


@pytest.mark.parametrize(("tool", "more"), ABOUT_ONE)
async def test_without_git_what_to_install_is_named(
    bench: Bench, tool: str, more: dict[str, Any]
) -> None:
    session = await bench.session(await bench.project())
    refused = await bench.call(tool, {"session_id": session.id, **more})
    assert refused.code == "conflict"
    assert "git is missing where the server runs" in refused.text
    assert "install git there" in refused.text


async def test_what_never_kept_anything_is_deleted_without_consent(bench: Bench) -> None:
    project = await bench.project()
    assert (await bench.do("project_delete", project_id=project.id))["deleted"]


@pytest.mark.parametrize("tool", ["session_diff", "session_export"])
async def test_a_turn_alone_and_two_ends_exclude_each_other(bench: Bench, tool: str) -> None:
    session = await bench.session(await bench.project())
    refused = await bench.call(tool, {"session_id": session.id, "turn": 1, "to_turn": 2})
    assert refused.code == "invalid_parameter"
    assert "turn: give either turn, or from_turn and to_turn" in refused.text


@pytest.mark.parametrize("tool", ["session_log", "session_diff", "session_export"])
@pytest.mark.parametrize(
    "cursor", ["x", "W10=", "", "é", "WyItLW91dHB1dD14IiwiIiwiIiwiIixbXSwwXQ=="]
)
async def test_a_cursor_that_was_never_given_is_refused(
    bench: Bench, tool: str, cursor: str
) -> None:
    session = await bench.session(await bench.project())
    refused = await bench.call(tool, {"session_id": session.id, "cursor": cursor})
    assert refused.code == "invalid_parameter"
    assert refused.text.startswith("cursor: ")


def test_a_piece_of_a_patch_ends_with_a_line() -> None:
    assert text_piece(b"one\ntwo\nthr", last=False) == ("one\ntwo\n", 8)
    assert text_piece(b"one\ntwo\nthr", last=True) == ("one\ntwo\nthr", 11)


def test_a_piece_of_one_long_line_ends_with_a_character() -> None:
    data = "ab€".encode()
    assert text_piece(data[:4], last=False) == ("ab", 2)
    assert text_piece(data, last=False) == ("ab€", 5)


def test_a_piece_that_grows_by_its_escapes_is_made_shorter() -> None:
    data = b"\x01" * 200_000
    text, used = text_piece(data, last=True)
    assert 0 < used < len(data)
    assert len(text) == used
    assert response_size.cost(text) <= response_size.MAX_PARTS
