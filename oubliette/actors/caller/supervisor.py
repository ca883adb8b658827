"""Supervisor of all callers: opens them on request, up to a number for each principal.

In a cluster a principal has that number on all nodes together. A caller that is open on several of
them is one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.actors.caller.actor import CallerActor
from oubliette.actors.caller.memory import CallerMemory
from oubliette.actors.caller.messages import CallerChanged, CallersUnknown
from oubliette.actors.messages import OpenCaller, caller_key
from oubliette.errors import LimitExceeded, StaleNode, StorageUnavailable
from oubliette.kit import ChildSpec, Deferred, DynamicSupervisor, LocalMessage, MailboxFull, handles

if TYPE_CHECKING:
    from oubliette.actors.caller_board import CallerBoard
    from oubliette.actors.claims import Claims
    from oubliette.config.schema import CallersConfig
    from oubliette.kit import Ref
    from oubliette.kit.messages import Reason
    from oubliette.runtime.store.reader import Reader

log = structlog.get_logger("oubliette.callers")

MAX_CALLERS: Final = 1000
"""Callers of one principal at a time; those that are idle for an hour do not count."""
CLAIM_SECONDS: Final = 2.0
"""Time for the claim of a caller; then it is opened all the same, and counted later."""


class CallerClaimed(LocalMessage):
    """To itself: what became of the claim of a caller that is to be opened."""

    opening: OpenCaller
    granted: bool = False
    error: BaseException | None = None


class CallersActor(DynamicSupervisor):
    """Supervisor that starts a CallerActor on request. Its name must be `callers`.

    Args:
        store: The actor in front of the database.
        reader: Of the callers' events.
        config: Of callers.
        board: Shares what is known of callers with the other nodes; None: there are no others.
        claims: Counts the callers of all nodes.
    """

    def __init__(
        self,
        store: Ref,
        reader: Reader,
        config: CallersConfig,
        board: CallerBoard | None = None,
        claims: Claims | None = None,
    ) -> None:
        super().__init__()
        self._store = store
        self._reader = reader
        self._config = config
        self._board = board
        self._claims = claims
        self._askers: dict[str, list[Deferred]] = {}
        """Those who wait for a claim, by the caller's key."""

    def on_exit(self, reason: Reason, error: BaseException | None) -> None:
        """Release what was claimed: the callers have ended."""
        del reason, error
        if self._claims is not None:
            for key in (*self.children, *self._askers):
                self._claims.release(key)

    def on_forgotten(self, name: str) -> None:
        """Release the claim of a caller that was idle for long."""
        if self._claims is not None:
            self._claims.release(name)

    @handles(OpenCaller)
    def _open(self, message: OpenCaller) -> str | None:
        key = caller_key(message.principal, message.caller_id)
        mine = f"{message.principal}/"
        if not self.has_child(key):
            if sum(1 for name in self.children if name.startswith(mine)) >= MAX_CALLERS:
                raise _too_many(message.principal)
            if self._claims is not None:
                self._claim(key, message, self._claims)
                return None
        return self._opened(key, message)

    def _claim(self, key: str, message: OpenCaller, claims: Claims) -> None:
        """Open the caller once it is claimed; the database is asked beside the mailbox."""
        askers = self._askers.setdefault(key, [])
        askers.append(self.defer())
        if len(askers) > 1:
            return

        async def claimed() -> bool:
            async with asyncio.timeout(CLAIM_SECONDS):
                return await claims.claim(key, f"callers:{message.principal}", MAX_CALLERS)

        self.pipe_to_self(
            claimed(),
            lambda granted: CallerClaimed(opening=message, granted=granted),
            lambda error: CallerClaimed(opening=message, error=error),
        )

    @handles(CallerClaimed)
    def _claimed(self, message: CallerClaimed) -> None:
        opening, error = message.opening, message.error
        key = caller_key(opening.principal, opening.caller_id)
        if isinstance(error, StorageUnavailable | StaleNode | TimeoutError):
            assert self._claims is not None
            self._claims.count(key, f"callers:{opening.principal}")
            error = None
        elif not message.granted:
            error = error or _too_many(opening.principal)
        askers = self._askers.pop(key, [])
        if error is None:
            name = self._opened(key, opening)
            for asker in askers:
                asker.set(name)
        else:
            for asker in askers:
                asker.set_error(error)

    def _opened(self, key: str, message: OpenCaller) -> str:
        return self.ensure_child(
            ChildSpec(
                name=key,
                cls=CallerActor,
                args=(self._store, self._reader, self._config),
                kwargs={
                    "principal": message.principal,
                    "caller_id": message.caller_id,
                    "memory": CallerMemory(),
                    "board": self._board,
                },
                restart="transient",
                shutdown=1.0,
            )
        )

    @handles(CallersUnknown)
    def _unknown(self, _: CallersUnknown) -> None:
        for name in self.children:
            ref = self.system.lookup(name)
            if ref is None:
                continue  # it reads the board when it starts again
            try:
                ref.tell(CallerChanged())
            except MailboxFull:
                log.warning("caller not read anew", caller=name)


def _too_many(principal: str) -> LimitExceeded:
    return LimitExceeded(
        f"{principal} has {MAX_CALLERS} callers already",
        hint="use fewer caller_ids; those that stay away for an hour are forgotten",
    )
