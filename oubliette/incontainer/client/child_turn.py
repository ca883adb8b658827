"""A child's turn whose server answers `session_message` at once: followed until it is over.

Such a server says which session it is, and what becomes of it is read with `session_events`. Our
own server waits, and none of this is needed with it.
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

WAIT_SECONDS = 20.0  # that the server is asked to hold an answer back until there is news
PAUSE_SECONDS = 0.5  # from one question to the next, where it does not
ANSWER_SECONDS = 60.0  # for an answer, beyond what it may be held back


def unanswered(result: object) -> Json | None:
    """The answer to `session_message`, if it names a session and says nothing of its result."""
    found = as_object(result)
    if found is None or not as_text(found.get("session_id")) or found.get("result") is not None:
        return None
    return found


class ChildTurn:
    """Asks for the events of one child until its turn is over, then answers the agent."""

    def __init__(
        self, loop: Loop, link: Link, request: AgentRequest, spawned: Json, *, due: float
    ) -> None:
        """Prepare.

        Args:
            loop: For the pauses.
            link: To the server.
            request: What the agent waits for.
            spawned: The server's answer to `session_message`.
            due: The `time.monotonic` at which the agent is told that it took too long.

        """
        self._loop = loop
        self._link = link
        self._request = request
        self._session_id = as_text(spawned.get("session_id"))
        self._spawned = spawned.get("spawned") is True
        self._due = due
        self._since = -1
        self._holds = True  # the server takes wait_seconds, as far as we know
        self._asked = 0.0
        self._text = ""
        self._reason = ""

    def ask(self) -> None:
        """Ask for what is new."""
        self._asked = time.monotonic()
        left = self._due - self._asked
        if left <= 0:
            told = f"session {self._session_id} has not finished in time; session_events reads on"
            self._request.answer(tools.tool_error(told, "timeout"))
            return
        params: Json = {"session_id": self._session_id, "since_index": self._since}
        seconds = ANSWER_SECONDS
        if self._holds:
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
            if failed.code == INVALID_PARAMS and self._holds:
                self._holds = False
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
            told = {
                "session_id": self._session_id,
                "result": final if isinstance(final, str) else self._text,
                "spawned": self._spawned,
            }
            self._request.answer(tools.success(told))
        elif page.get("completed") is True or page.get("failed") is True:
            reason = self._reason or self._text
            told = f"the turn of session {self._session_id} failed: {reason}"
            self._request.answer(tools.tool_error(told, "child_failed"))
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
