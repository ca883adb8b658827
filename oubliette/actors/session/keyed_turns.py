"""KeyedTurns, the turns that were submitted under idempotency keys a moment ago.

Whether a request was made before is looked up in the store. One that is repeated before the first
has been stored, as when the storage is away, is not found there: the session knows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.errors import Conflict

if TYPE_CHECKING:
    from oubliette.actors.session.messages import SubmittedTurn
    from oubliette.kit import Deferred
    from oubliette.records import IdempotencyKey

KEPT: Final = 32
"""Number of turns that are known after they were stored, as a look may have begun before."""


class KeyedTurn:
    """A turn that was submitted under a key, and the requests that wait for its answer."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.stored: SubmittedTurn | None = None
        self._waiting: list[Deferred] = []

    def answer(self, request: Deferred) -> None:
        """Answer a request once the turn is stored."""
        if self.stored is not None:
            request.set(self.stored)
        else:
            self._waiting.append(request)

    def was_stored(self, answer: SubmittedTurn) -> None:
        self.stored = answer
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            request.set(answer)


class KeyedTurns:
    """The keyed turns of one session, the latest ones; part of its actor."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, str, str], KeyedTurn] = {}

    def earlier(self, claim: IdempotencyKey | None) -> KeyedTurn | None:
        """Return the turn that was submitted under this key; None: the request is new.

        Raises:
            Conflict: the request with this key had other arguments.
        """
        turn = None if claim is None else self._turns.get(_name(claim))
        if turn is not None and claim is not None and turn.digest != claim.digest:
            raise Conflict(
                "idempotency_key: it was used with other arguments", hint="choose a new key"
            )
        return turn

    def add(self, claim: IdempotencyKey | None) -> KeyedTurn:
        """A new turn, which is known from now on if it has a key."""
        turn = KeyedTurn(b"" if claim is None else claim.digest)
        if claim is None:
            return turn
        self._turns[_name(claim)] = turn
        if len(self._turns) > KEPT:
            oldest = next((name for name, each in self._turns.items() if each.stored), None)
            if oldest is not None:
                del self._turns[oldest]
        return turn


def with_turn(claim: IdempotencyKey, number: int, last_index: int) -> IdempotencyKey:
    """The record of a key, of which the answer shows which turn it is."""
    answer = {**(claim.answer or {}), "turn": number, "last_index": last_index}
    return msgspec.structs.replace(claim, answer=answer)


def _name(claim: IdempotencyKey) -> tuple[str, str, str]:
    return claim.principal, claim.tool, claim.key
