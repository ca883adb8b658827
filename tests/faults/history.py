"""What a caller saw and was promised, held against what the server kept (I1, I2, I4, I5, I8)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from oubliette.testing.invariants import check_delivery, check_log
from tests.callers import HttpCaller, ToolFailed

if TYPE_CHECKING:
    from oubliette.testing.server import ServerProcess

__all__ = [
    "BROKEN",
    "OPEN",
    "Lender",
    "check_log",
    "check_nothing_left",
    "check_stopped",
    "check_told",
    "deltas",
    "texts",
]

BROKEN = (OSError, EOFError, ValueError)
"""What a call raises whose server was killed: reset, end of stream, half a head."""
OPEN = {"created", "running"}


class Lender(HttpCaller):
    """A caller that answers until its answer is acknowledged, over any number of servers."""

    def __init__(self, url: str, token: str, **kwargs: Any) -> None:
        super().__init__(url, token, **kwargs)
        self.acknowledged: set[str] = set()
        """Requests whose answer was accepted."""
        self.tried: set[str] = set()
        """Requests whose answer was sent; it may have been accepted unheard."""
        self.refused: set[str] = set()
        """Requests that were not open any more."""

    async def _answer(self, event: dict[str, Any]) -> None:
        request_id = event["request_id"]
        if request_id in self.acknowledged:
            return
        result = self.tools[event["tool"]](**event["arguments"])
        if hasattr(result, "__await__"):
            result = await result
        self.tried.add(request_id)
        try:
            await self.call(
                "caller_tool_response",
                session_id=event["session_id"],
                request_id=request_id,
                result=result,
            )
        except ToolFailed:
            self.refused.add(request_id)
        except BROKEN:
            return  # it is asked again when it listens again
        else:
            self.acknowledged.add(request_id)

    @property
    def told(self) -> list[dict[str, Any]]:
        """Events of the log that a listener was told."""
        return [event for event in self.events if "index" in event]

    async def log(self, session_id: str) -> list[dict[str, Any]]:
        """A session's whole log, read page by page."""
        events: list[dict[str, Any]] = []
        while True:
            last = events[-1]["index"] if events else -1
            page = await self.call("session_events", session_id=session_id, since_index=last)
            events += page["events"]
            if not page["more"]:
                return events

    async def turns_done(self, session_id: str, *, wait: float = 20.0) -> dict[str, Any]:
        """Wait until no turn of the session runs or waits; the last page of its log."""
        last = -1
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        while True:
            page = await self.call(
                "session_events",
                session_id=session_id,
                since_index=last,
                wait_seconds=wait,
                max_events=1000,
            )
            if page["completed"] or page["failed"]:
                return page
            if page["events"]:
                last, until = page["last_index"], loop.time() + wait
                continue
            if loop.time() >= until:
                raise AssertionError(
                    f"{session_id} is {page['status']} after {wait} s of silence; "
                    + await self._why_silent(session_id)
                )
            await asyncio.sleep(0.02)  # nobody runs it yet: the server has just started

    async def _why_silent(self, session_id: str) -> str:
        """What a session waits for, its last events, and what became of this caller's answers."""
        session = await self.call("session_get", session_id=session_id)
        events = [(each["type"], each["ts"]) for each in (await self.log(session_id))[-5:]]
        answers = {
            "acknowledged": self.acknowledged,
            "tried": self.tried - self.acknowledged,
            "refused": self.refused,
        }
        return f"it is {session}, its last events are {events}, the answers {answers}"


def check_told(caller: Lender, logs: dict[str, list[dict[str, Any]]]) -> None:
    """What listeners were told is what the log says: no gap, and nothing twice unless marked."""
    check_delivery(caller.told, logs)


def check_nothing_left(server: ServerProcess) -> None:
    """Containers are those of the store; each live session has one agent, each other none (I8)."""
    recorded = {row[0] for row in server.query("SELECT id FROM containers")}
    assert set(server.containers()) == recorded
    for session_id, live, status in server.query("SELECT id, live, status FROM sessions"):
        agents = server.agents(session_id)
        assert len(agents) == live, f"{session_id} is {status} and has {len(agents)} agents"


def check_stopped(server: ServerProcess) -> None:
    """After an orderly stop nothing lives, and nothing says that it does (I5)."""
    assert server.containers() == {}
    assert server.query("SELECT id, status FROM sessions WHERE live = 1") == []


def deltas(events: list[dict[str, Any]]) -> list[int]:
    """The numbers that `emit` gave its deltas."""
    return [int(event["text"].split()[0]) for event in events if event["type"] == "delta"]


def texts(events: list[dict[str, Any]]) -> list[str]:
    """What the agent said, message by message."""
    return [event["text"] for event in events if event["type"] == "message"]


Check = "Callable[[], None]"
