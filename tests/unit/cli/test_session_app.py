"""The screen of a session, without a server: what it shows when its window changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.cli.run.session_app import SessionApp, TranscriptLog
from oubliette.contract.events import Message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

WORDS = [f"word{number}" for number in range(60)]
SECONDS = 30.0


class Session:
    """One that has said a long sentence, and then is silent."""

    async def events(self, *, after: int, follow: bool) -> AsyncIterator[Message]:
        assert (after, follow) == (-1, True)
        common: dict[str, Any] = {"session_id": "gogol_1", "seq": 1, "ts": 1.0, "version": 1}
        yield Message(index=0, text=" ".join(WORDS), role="assistant", **common)
        await asyncio.get_running_loop().create_future()


def lines(app: SessionApp) -> list[str]:
    return [line.text.rstrip() for line in app.query_one(TranscriptLog).lines]


async def test_the_transcript_is_wrapped_again_when_the_window_is_resized() -> None:
    app: Any = SessionApp(None, Session(), -1)  # type: ignore[arg-type]
    seen = {}
    async with asyncio.timeout(SECONDS), app.run_test(size=(100, 20)) as pilot:
        for columns in (100, 40, 160, 100):
            await pilot.resize_terminal(columns, 20)
            await pilot.pause()
            seen[columns] = shown = lines(app)
            assert " ".join(" ".join(shown).split()) == " ".join(WORDS)
            assert columns - 12 < max(map(len, shown)) < columns
            assert app.query_one(TranscriptLog).is_vertical_scroll_end
    assert len(seen[40]) > len(seen[100]) > len(seen[160])
