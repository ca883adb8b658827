"""Registry of live sessions: from a session's id to the ref of its SessionActor.

One actor, the SessionRegistryActor, changes the table. All others have a SessionRegistry, which
only reads it: a lookup is made for each call of a caller's tool, so it is no message.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from oubliette.errors import NotFound, Unavailable
from oubliette.kit import Actor, ActorDead, Down, Message, Reply, handles
from oubliette.kit.retry import RESTART_SECONDS, ask_with_retry

if TYPE_CHECKING:
    from oubliette.kit import Ref

REGISTRY = "session_registry"


class EnterSession(Message, Reply[None]):
    """To the SessionRegistryActor: the actor `name` runs this session from now on."""

    session_id: str
    name: str
    supervisor: str
    """Name of the supervisor that restarts the actor; its sessions leave with it."""


class LeaveSession(Message):
    """To the SessionRegistryActor: the actor `name` does not run this session any more."""

    session_id: str
    name: str


class FindSession(Message, Reply[str | None]):
    """To `session_registry`: the name of the actor that runs this session; None if none does."""

    session_id: str


class GetSupervised(Message, Reply[tuple[str, ...]]):
    """To a supervisor of sessions: request for their ids, those that await a restart included."""


class _Supervised(Message):
    supervisor: str
    session_ids: tuple[str, ...]


class _NotAnswered(Message):
    pass


class SessionTable:
    """Live sessions by id; only the SessionRegistryActor changes it, and keeps it when restarted.

    Refs in it are by name: they outlast a restart of the session's actor.
    """

    def __init__(self) -> None:
        self.sessions: dict[str, Ref] = {}
        self.supervisors: dict[str, dict[str, None]] = {}
        """Name of a supervisor → ids of the sessions that entered under it."""
        self.changed = asyncio.Event()
        """Replaced, and set, whenever a session enters."""

    def enter(self, session_id: str, ref: Ref) -> None:
        """Record that `ref` runs this session from now on."""
        self.sessions[session_id] = ref
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def leave(self, session_id: str, name: str) -> None:
        """Remove a session that the actor `name` ran."""
        known = self.sessions.get(session_id)
        if known is not None and known.name == name:
            del self.sessions[session_id]


class SessionRegistryActor(Actor):
    """Owner of the table of live sessions. Its name must be `session_registry`."""

    mailbox_size: ClassVar[int] = 100_000

    def __init__(self, table: SessionTable) -> None:
        super().__init__()
        self._table = table

    def on_start(self) -> None:
        """After a failure: remove the sessions that left while there was no actor."""
        for name in list(self._table.supervisors):
            supervisor = self.system.ref(name)
            self.watch(supervisor)
            self.pipe_to_self(
                supervisor.ask(GetSupervised()),
                lambda ids, name=name: _Supervised(supervisor=name, session_ids=ids),
                lambda _: _NotAnswered(),  # it has ended: there is a Down for it
            )

    @handles(EnterSession, at_once=True)
    def _enter(self, message: EnterSession) -> None:
        supervised = self._table.supervisors.get(message.supervisor)
        if supervised is None:
            supervised = self._table.supervisors[message.supervisor] = {}
            self.watch(self.system.ref(message.supervisor))
        supervised[message.session_id] = None
        self._table.enter(message.session_id, self.system.ref(message.name))

    @handles(LeaveSession, at_once=True)
    def _leave(self, message: LeaveSession) -> None:
        self._table.leave(message.session_id, message.name)
        supervisor = message.name.removesuffix(f"/{message.session_id}")
        self._table.supervisors.get(supervisor, {}).pop(message.session_id, None)

    @handles(FindSession)
    def _find(self, message: FindSession) -> str | None:
        known = self._table.sessions.get(message.session_id)
        return None if known is None else known.name

    @handles(_Supervised)
    def _supervised(self, message: _Supervised) -> None:
        known = self._table.supervisors.get(message.supervisor, {})
        for session_id in [each for each in known if each not in message.session_ids]:
            self._drop(message.supervisor, session_id)

    @handles(_NotAnswered)
    def _not_answered(self, _: _NotAnswered) -> None:
        pass

    @handles(Down)
    def _supervisor_down(self, message: Down) -> None:
        for session_id in list(self._table.supervisors.get(message.name, {})):
            self._drop(message.name, session_id)
        self._table.supervisors.pop(message.name, None)

    def _drop(self, supervisor: str, session_id: str) -> None:
        self._leave(LeaveSession(session_id=session_id, name=f"{supervisor}/{session_id}"))


class SessionRegistry:
    """Read-only view of the live sessions."""

    __slots__ = ("_table",)

    def __init__(self, table: SessionTable) -> None:
        self._table = table

    def session(self, session_id: str) -> Ref | None:
        """The ref of the actor that runs this session, if it is live."""
        return self._table.sessions.get(session_id)

    async def appears(self, session_id: str, timeout: float = RESTART_SECONDS) -> bool:
        """Wait until an actor runs this session; return whether that came in time.

        For a session that is live in the store: a server that has just started recovers them one by
        one, and engines are slow to list their containers.
        """
        try:
            async with asyncio.timeout(timeout):
                while session_id not in self._table.sessions:
                    await self._table.changed.wait()
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
            ref = self._table.sessions.get(session_id)
            if ref is None:
                raise NotFound(f"session {session_id} is not live")
            return await ref.ask(message, timeout)

        try:
            return await ask_with_retry(once)
        except ActorDead as error:
            raise Unavailable("the session is being restarted; try again") from error

    def live(self) -> list[Ref]:
        return [ref for ref in self._table.sessions.values() if ref.is_alive()]

    def __len__(self) -> int:
        return len(self._table.sessions)
