"""Requests to OpenCode's server as lines for the bridge, and what its answers mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from oubliette.runtime.agents.handshake_adapter import Json, line_of, object_of
from oubliette.runtime.agents.opencode.parts import error_text, turn_of

if TYPE_CHECKING:
    from oubliette.runtime.agents.handshake_adapter import Opening

_OK: Final = 200
_BAD: Final = 300


def request_line(
    name: str, method: str, path: str, body: Json | None = None, **for_the_bridge: str | bool
) -> bytes:
    """The line of a request, whose answer has the same name."""
    request: Json = {"id": name, "method": method, "path": path, **for_the_bridge}
    if body is not None:
        request["body"] = body
    return line_of(request)


def is_good(answer: Json) -> bool:
    status = answer.get("status")
    return isinstance(status, int) and _OK <= status < _BAD


def reason_of(answer: Json) -> str:
    if "error" in answer:
        return str(answer["error"])
    body = object_of(answer.get("body"))
    detail = body.get("text") or error_text(body) if body else ""
    return f"{detail or 'no reason was given'} (HTTP {answer.get('status')})"


def list_of(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


PREFIX: Final = "fork-"
"""Beginning of the names of these requests."""
_MESSAGES: Final = f"{PREFIX}messages"
_COPY: Final = f"{PREFIX}copy"
_MOVE: Final = f"{PREFIX}move"
_CHECK: Final = f"{PREFIX}check"


class NotForked(Exception):
    """The conversation cannot be forked; its text is the reason."""


class ForkRequests:
    """Requests by which a session begins with a part of another session's conversation.

    The files of the other session are in HOME. OpenCode copies its messages up to one of them; the
    copy then still works in the other session's folder, and is moved to its own one. Nothing is
    prompted in a copy that was not.
    """

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
