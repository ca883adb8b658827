"""The screen of a session, without a server: its width, and the sessions below it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oubliette.cli.run.session_app import HISTORY, SessionApp, TranscriptLog, shown_from

pytestmark = pytest.mark.anyio

WORDS = [f"word{number}" for number in range(60)]
ROOT, CHILD = "gogol_" + "a" * 26, "gogol_" + "b" * 26
SECONDS = 30.0


class Server:
    """Has the log of a tree, and is silent after it."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self.events = [
            {"session_id": ROOT, "index": seq, "seq": seq, "ts": 1.0, "version": 1, **event}
            for seq, event in enumerate(events)
        ]

    async def call(self, tool: str, **asked: Any) -> dict[str, Any]:
        if tool == "session_get":
            return {"last_index": len(self.events) - 1}
        assert tool == "session_events"
        events = self.events[asked["since_index"] + 1 :][: asked.get("max_events")]
        if not events:
            await asyncio.get_running_loop().create_future()
        assert asked.get("include_children") or asked["max_events"] == 1
        return {"session_id": ROOT, "status": "idle", "events": events, "last_index": len(events)}


class Session:
    id = ROOT


def shows(server: Server, after: int = -1) -> SessionApp:
    return SessionApp(server, Session(), after)  # type: ignore[arg-type]


def lines(app: SessionApp) -> list[str]:
    return [line.text.rstrip() for line in app.query_one(TranscriptLog).lines]


async def test_the_transcript_is_wrapped_again_when_the_window_is_resized() -> None:
    app = shows(Server({"type": "message", "text": " ".join(WORDS), "role": "assistant"}))
    seen = {}
    below: list[int] = []
    async with asyncio.timeout(SECONDS), app.run_test(size=(100, 12)) as pilot:
        for columns in (100, 40, 160, 100):
            await pilot.resize_terminal(columns, 12)
            await pilot.pause()
            seen[columns] = shown = lines(app)
            assert " ".join(" ".join(shown).split()) == " ".join(WORDS)
            assert columns - 12 < max(map(len, shown)) < columns
            log = app.query_one(TranscriptLog)
            assert log.scroll_y == log.max_scroll_y
            below.append(log.max_scroll_y)
    assert below[1] > below[0] == below[2] == 0
    assert len(seen[40]) > len(seen[100]) > len(seen[160])


async def test_sessions_below_it_are_indented_under_their_names() -> None:
    of_child = {"session_id": CHILD}
    server = Server(
        {"type": "message", "text": "I ask another one.", "role": "assistant"},
        {"type": "status", "status": "queued", "parent_session_id": ROOT, **of_child},
        {"type": "message", "text": "I am the other one.", "role": "assistant", **of_child},
        {"type": "message", "text": "Still me.", "role": "assistant", **of_child},
        {"type": "message", "text": "It has answered.", "role": "assistant"},
    )
    app = shows(server)
    async with asyncio.timeout(SECONDS), app.run_test(size=(80, 20)) as pilot:
        await pilot.pause()
        assert lines(app) == [
            "I ask another one.",
            f"  ── {CHILD[-6:]}",
            "  I am the other one.",
            "  Still me.",
            f"── {ROOT[-6:]}",
            "It has answered.",
        ]


async def test_a_long_log_is_shown_from_the_last_of_its_events_on() -> None:
    said = {"type": "message", "text": "a", "role": "assistant"}
    assert await shown_from(Server(*[said] * HISTORY), ROOT) == -1  # type: ignore[arg-type]
    assert await shown_from(Server(*[said] * (HISTORY + 5)), ROOT) == 4  # type: ignore[arg-type]
