"""Poller of a child's turn, for servers that answer `session_message` before the turn is over.

Such a server returns the session's id, and the outcome is read with `session_events`. Our own
server waits, and does not need this.
"""

from __future__ import annotations

import time

from ..io.json_values import as_array, as_object, as_text
from . import tool_catalog as tools
from .calls import CallFailed, PendingCall
from .requests import INVALID_PARAMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..io.event_loop import Loop
    from .relay_link import Link
    from .requests import AgentRequest

    Json = dict[str, Any]

WAIT_SECONDS = 20.0  # for which the server is asked to hold an answer back until there is news
PAUSE_SECONDS = 0.5  # between two requests, if the server does not
ANSWER_SECONDS = 60.0  # for an answer, beyond what it may be held back


def unanswered(result: object) -> Json | None:
    """The answer to `session_message`, if it names a session and has no result."""
    found = as_object(result)
    if found is None or not as_text(found.get("session_id")) or found.get("result") is not None:
        return None
    return found


class ChildTurn:
    """Poller of one child's events until its turn is over; then it answers the agent."""

    def __init__(
        self, loop: Loop, link: Link, request: AgentRequest, spawned: Json, *, due: float
    ) -> None:
        """Prepare.

        Args:
            loop: Runs the pauses.
            link: The link to the server.
            request: The agent's request.
            spawned: The server's answer to `session_message`.
            due: The `time.monotonic` of the timeout.

        """
        self._loop = loop
        self._link = link
        self._request = request
        self._session_id = as_text(spawned.get("session_id"))
        self._spawned = spawned.get("spawned") is True
        self._due = due
        self._since = -1
        self._long_polls = True  # the server takes wait_seconds, as far as we know
        self._asked = 0.0
        self._text = ""
        self._reason = ""

    def ask(self) -> None:
        self._asked = time.monotonic()
        left = self._due - self._asked
        if left <= 0:
            message = (
                f"session {self._session_id} has not finished in time; session_events reads on"
            )
            self._request.answer(tools.tool_error(message, "timeout"))
            return
        params: Json = {"session_id": self._session_id, "since_index": self._since}
        seconds = ANSWER_SECONDS
        if self._long_polls:
            params["wait_seconds"] = min(WAIT_SECONDS, left)
            seconds += WAIT_SECONDS
        request = self._request
        call = PendingCall(
            "session_events",
            params,
            done=self._answered,
            outage_seconds=left,
            on_progress=request.progress if request.token is not None else None,
        )
        number = self._link.call(call, min(left, seconds))
        if number:
            request.on_cancel = lambda: self._link.cancel(number)

    def _answered(self, result: object, failed: CallFailed | None) -> None:
        if failed is not None:
            if failed.code == INVALID_PARAMS and self._long_polls:
                self._long_polls = False
                self.ask()
            else:
                self._request.answer(tools.tool_error(failed.message, failed.kind))
            return
        page = as_object(result) or {}
        self._read(page)
        if page.get("more") is True:
            self.ask()
        elif page.get("completed") is True and page.get("failed") is not True:
            final: object = page.get("final_response")
            message = {
                "session_id": self._session_id,
                "result": final if isinstance(final, str) else self._text,
                "spawned": self._spawned,
            }
            self._request.answer(tools.success(message))
        elif page.get("completed") is True or page.get("failed") is True:
            reason = self._reason or self._text
            message = f"the turn of session {self._session_id} failed: {reason}"
            self._request.answer(tools.tool_error(message, "child_failed"))
        else:
            pause = max(0.0, self._asked + PAUSE_SECONDS - time.monotonic())
            timer = self._loop.call_later(pause, self.ask)
            self._request.on_cancel = timer.cancel

    def _read(self, page: Json) -> None:
        for entry in as_array(page.get("events")) or []:
            event = as_object(entry) or {}
            kind, text = event.get("type"), as_text(event.get("text"))
            if kind == "message" and event.get("role", "assistant") == "assistant":
                self._text = text
            elif kind == "error":
                self._reason = text or as_text(event.get("message"))
        last: object = page.get("last_index")
        if isinstance(last, int) and last > self._since:
            self._since = last
