"""Session, a conversation with one agent in a container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from oubliette.api.event_iterator import EventIterator
from oubliette.api.subscribing import subscribe
from oubliette.api.turn import Turn
from oubliette.api.views import SessionInfo
from oubliette.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oubliette.api.callers.caller_loops import OnPermission
    from oubliette.api.context import ClientContext
    from oubliette.api.subscribing import Subscriber, Subscription

END_SECONDS = 20.0


class Session:
    """A session: send it messages, follow its events, interrupt and end it.

    Made by `Project.spawn` and `Oubliette.session`.
    """

    def __init__(self, shared: ClientContext, answer: Mapping[str, Any]) -> None:
        self._shared = shared
        self.id: str = answer["session_id"]
        """Id of the session."""
        self.project_id: str = answer["project_id"]
        """Id of its project."""
        self.workspace_id: str = answer["workspace_id"]
        """Id of its workspace, which is /workspace/workspaces/<id> in the container."""
        self.warnings: tuple[str, ...] = tuple(answer.get("warnings") or ())
        """Parts of the last message without effect."""
        turns = answer.get("turn_count")
        self.turn: Turn | None = Turn(shared, self.id, turns, -1) if turns else None
        """The last turn: of this object, or when it was found; None if there was none."""

    def __repr__(self) -> str:
        return f"<Session {self.id}>"

    def events(self, *, after: int = -1, follow: bool = False) -> EventIterator:
        """Return an iterator over the events of the session, in the order of its log.

        It ends when no turn runs or waits. It may be left at any moment; `cursor` of the iterator
        is the place to continue from.

        Args:
            after: Index of the last event that is known; -1: from the beginning.
            follow: Whether to wait for further turns, until the session has finished.
        """
        self._shared.check()
        return EventIterator(self._shared, self.id, after=after, follow=follow)

    async def send(
        self,
        message: str,
        *,
        tools: Iterable[object] | None = None,
        on_permission: OnPermission | None = None,
        model: str | None = None,
        autonomy: str | None = None,
        idempotency_key: str | None = None,
    ) -> Turn:
        """Send a message; a session that has stopped is resumed. Returns when it is stored.

        Args:
            message: For the agent. It waits while a turn runs.
            tools: Tools of this program that replace those provided so far; None: unchanged.
            on_permission: Policy from now on; None: unchanged if no tools are given either.
            model: Model of the agent, if the session is resumed.
            autonomy: Actions that need no permission, if the session is resumed.
            idempotency_key: Name of this request; a repeated one sends no second message.

        Returns:
            The turn, to be awaited or iterated.

        Raises:
            Conflict: the session was ended.
            BadTool: a tool cannot be offered.
        """
        self._shared.check()
        lending = await self._shared.loops.prepare(tools, on_permission)
        arguments: dict[str, Any] = {
            "session_id": self.id,
            "message": message,
            "model": model,
            "autonomy": autonomy or ("ask" if on_permission is not None else None),
            "idempotency_key": idempotency_key,
            **({} if lending is None else lending.arguments()),
        }
        if lending is not None:
            lending.taken_by(self.id, self.workspace_id)
        answer = await self._shared.call("session_message", arguments)
        self._shared.started.setdefault(self.id)
        return self.began(answer, lends=bool(tools))

    def began(self, answer: Mapping[str, Any], *, lends: bool) -> Turn:
        """Record the turn that an answer of the server reports. For the package."""
        self.warnings = tuple(answer.get("warnings") or ())
        self.turn = Turn(self._shared, self.id, answer["turn"], answer["last_index"], lends=lends)
        return self.turn

    async def interrupt(self) -> None:
        """Interrupt the running turn; the session takes further messages. No turn is no error."""
        await self._shared.call("session_interrupt", {"session_id": self.id}, timeout=END_SECONDS)

    async def end(self, *, tree: bool = False) -> None:
        """End the session: its agent is stopped within 5 s, and no message resumes it.

        Args:
            tree: Whether its descendants are ended too.
        """
        self._shared.check()
        await end_session(self._shared, self.id, tree=tree)

    async def get(self) -> SessionInfo:
        """Return the state of the session."""
        answer = await self._shared.call("session_get", {"session_id": self.id})
        return msgspec.convert(answer, SessionInfo, strict=False)

    async def subscribe(
        self, subscriber: Subscriber, *, after: int | None = -1, name: str | None = None
    ) -> Subscription:
        """Send the events of this session to an actor of the program, in process only.

        See `Oubliette.subscribe`.
        """
        return await subscribe(self._shared, subscriber, session_id=self.id, after=after, name=name)


async def end_session(shared: ClientContext, session_id: str, *, tree: bool) -> None:
    """End a session, and with `tree` its descendants; forget what was provided to it."""
    try:
        # Not by `shared.call`, which refuses and ends calls when the block ends.
        await shared.connection.call(
            "session_end", {"session_id": session_id, "tree": tree or None}, timeout=END_SECONDS
        )
    except NotFound:
        _forget(shared, session_id)
        raise
    _forget(shared, session_id)


def _forget(shared: ClientContext, session_id: str) -> None:
    shared.started.pop(session_id, None)
    shared.loops.forget(session_id)
