"""Requests by which OpenCode begins with a part of another session's conversation.

The files of the other session are in HOME. OpenCode copies its messages up to one of them; the copy
then still works in the other session's folder, and is moved to its own one. Nothing is prompted in
a copy that was not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.runtime.agents.handshake_adapter import Json, object_of
from oubliette.runtime.agents.opencode.parts import turn_of
from oubliette.runtime.agents.opencode.requests import is_good, list_of, reason_of, request_line

if TYPE_CHECKING:
    from oubliette.runtime.agents.handshake_adapter import Opening

PREFIX: Final = "fork-"
"""Beginning of the names of these requests."""
_MESSAGES: Final = f"{PREFIX}messages"
_COPY: Final = f"{PREFIX}copy"
_MOVE: Final = f"{PREFIX}move"
_CHECK: Final = f"{PREFIX}check"


class NotForked(Exception):
    """The conversation cannot be forked; its text is the reason."""


class ForkRequests:
    """Requests for one session: its messages, the copy, its move, a look at it."""

    def __init__(self, opening: Opening) -> None:
        self._of = opening.fork_of
        self._folder = opening.cwd
        self._copy = ""

    def first(self) -> bytes | None:
        if self._of is None:
            return None
        path = f"/session/{self._of.agent_session_id}/message"
        return request_line(_MESSAGES, "GET", path, ids=True)

    def after(self, name: str, answer: Json) -> bytes | Json:
        """Return the request that follows an answer, or the session once it is complete.

        Raises:
            NotForked: the answer is an error, or the session would not be what is wanted.
        """
        if not is_good(answer):
            raise NotForked(f"{name.removeprefix(PREFIX)}: {reason_of(answer)}")
        body = object_of(answer.get("body"))
        if name == _MESSAGES:
            return self._copied_before(list_of(answer.get("body")))
        if name == _COPY:
            self._copy = str(body.get("id"))
            move = {"sessionID": self._copy, "destination": {"directory": self._folder}}
            return request_line(_MOVE, "POST", "/experimental/control-plane/move-session", move)
        if name == _MOVE:
            return request_line(_CHECK, "GET", f"/session/{self._copy}")
        if body.get("id") != self._copy or body.get("directory") != self._folder:
            raise NotForked(f"the copy would work in {body.get('directory')}")
        return body

    def _copied_before(self, messages: list[object]) -> bytes:
        """Request a copy of what came before the first prompt of a later turn."""
        if self._of is None:
            raise NotForked("there was no conversation to fork")
        turns = [(turn_of(each), str(each)) for each in messages]
        own = [(number, each) for number, each in turns if number is not None]
        if self._of.turn > 0 and not any(number <= self._of.turn for number, _ in own):
            raise NotForked(f"its conversation has no turn up to {self._of.turn}")
        later = next((each for number, each in own if number > self._of.turn), None)
        path = f"/session/{self._of.agent_session_id}/fork"
        return request_line(_COPY, "POST", path, {} if later is None else {"messageID": later})
