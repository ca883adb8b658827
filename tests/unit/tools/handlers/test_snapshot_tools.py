"""Tools about snapshots say what is missing where none are taken, and what is wrong in arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from oubliette.actors.snapshot_requests import SNAPSHOTS, AskHistory
from oubliette.config.schema import SnapshotsConfig
from oubliette.kit import Actor, handles
from oubliette.records import Event, Turn
from oubliette.runtime.snapshots.git_program import GitProgram
from oubliette.runtime.snapshots.history_records import LogAnswer
from oubliette.runtime.store.operations import AppendEvents, PutTurn
from oubliette.tools.handlers.repository import session_log
from oubliette.tools.handlers.repository.session_diff import text_piece
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


class History(Actor):
    """Knows no snapshots."""

    @handles(AskHistory)
    def ask(self, _: AskHistory) -> LogAnswer:
        return LogAnswer()


async def test_what_turns_cost_is_known_without_reading_the_log(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for turns of a release that did not note it: the log is read up to the first that did."""
    monkeypatch.setattr(GitProgram, "find", object)
    bench.system.spawn(History, name=SNAPSHOTS)
    session = await bench.session(await bench.project(), cost_usd=2.0)
    costs = [None, None, 0.5, 0.5, 0.75]  # when each began; the second never did
    for number, before in enumerate(costs, 1):
        turn = Turn(session_id=session.id, number=number, prompt="p", state="done", created_at=1.0)
        began = None if before is None else number
        await bench.put(PutTurn(replace(turn, cost_before=before, began_index=began)))
    for turn, cost in ((1, 0.3), (1, 0.2), (2, 0.0), (3, 77.0)):  # the last one is behind
        used = {"kind": "usage", "turn": turn, "cost_usd": cost}
        event = Event(session_id=session.id, index=-1, ts=1.0, type="system", data=used)
        await bench.put(AppendEvents((event,)))

    async def seen(**more: Any) -> list[float | None]:
        page = await bench.do("session_log", session_id=session.id, **more)
        return [each["cost_usd"] for each in page["turns"]]

    assert await seen() == [0.5, 0.0, None, 0.25, 1.25]
    assert await seen(limit=1, cursor="3") == [0.25]
    new = await bench.session(await bench.project("q"), cost_usd=1.0)
    turn = Turn(session_id=new.id, number=1, prompt="p", state="done", created_at=1.0)
    await bench.put(PutTurn(replace(turn, cost_before=0.0, began_index=1)))

    def read(*_: Any) -> None:
        pytest.fail("the log was read")

    monkeypatch.setattr(session_log, "turn_costs", read)
    assert [
        each["cost_usd"] for each in (await bench.do("session_log", session_id=new.id))["turns"]
    ] == [1.0]


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
