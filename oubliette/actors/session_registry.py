"""Registry of live sessions: from a session's id to the ref of its SessionActor."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from oubliette.errors import NotFound, Unavailable
from oubliette.kit import ActorDead
from oubliette.kit.retry import RESTART_SECONDS, ask_with_retry

if TYPE_CHECKING:
    from oubliette.kit import Message, Ref


class SessionRegistry:
    """Live sessions by id. Refs in it are by name: they outlast a restart of the actor."""

    def __init__(self) -> None:
        self._sessions: dict[str, Ref] = {}
        self._ready = asyncio.Event()

    def enter(self, session_id: str, ref: Ref) -> None:
        """Record that `ref` runs this session from now on."""
        self._sessions[session_id] = ref
        ready, self._ready = self._ready, asyncio.Event()
        ready.set()

    def leave(self, session_id: str, name: str) -> None:
        """Remove a session that finished, or whose actor `name` ended with the server."""
        known = self._sessions.get(session_id)
        if known is not None and known.name == name:
            del self._sessions[session_id]

    def session(self, session_id: str) -> Ref | None:
        """Return the ref of the actor that runs this session, if it is live."""
        return self._sessions.get(session_id)

    async def appears(self, session_id: str, timeout: float = RESTART_SECONDS) -> bool:
        """Wait until an actor runs this session; return whether that came in time.

        For a session that is live in the store: a server that has just started recovers them one by
        one, and engines are slow to list their containers.
        """
        try:
            async with asyncio.timeout(timeout):
                while session_id not in self._sessions:
                    await self._ready.wait()
        except TimeoutError:
            return False
        return True

    async def ask(self, session_id: str, message: Message, timeout: float = 30.0) -> Any:
        """Ask the session's actor; repeat it to the new actor if it is being restarted.

        Only for messages that may be handled twice.

        Raises:
            NotFound: the session is not live.
            Unavailable: its actor did not come back in time.
        """

        async def once() -> Any:
            ref = self._sessions.get(session_id)
            if ref is None:
                raise NotFound(f"session {session_id} is not live")
            return await ref.ask(message, timeout)

        try:
            return await ask_with_retry(once)
        except ActorDead as error:
            raise Unavailable("the session is being restarted; try again") from error

    def live(self) -> list[Ref]:
        """Return the refs of all live sessions."""
        return [ref for ref in self._sessions.values() if ref.is_alive()]

    def __len__(self) -> int:
        return len(self._sessions)
