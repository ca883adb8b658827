"""Spawns that can be repeated: the same idempotency key or call gets the first one's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.actors.messages import SpawnResult
from oubliette.errors import Conflict
from oubliette.records import IdempotencyKey

if TYPE_CHECKING:
    from oubliette.actors.messages import SpawnSession
    from oubliette.clock import Clock
    from oubliette.records import Session
    from oubliette.runtime.store.reader import Reader

IDEMPOTENCY_SECONDS: Final = 86_400.0


class SpawnAnswers:
    """Part of a ProjectActor that finds requests which were answered before."""

    def __init__(self, reader: Reader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock

    async def known(self, message: SpawnSession) -> SpawnResult | None:
        """The answer to an earlier request with the same call id or idempotency key.

        Raises:
            Conflict: the request with this idempotency key had other arguments.
        """
        reader = self._reader
        if message.call_id is not None:
            turn = await reader.turn_of_call(message.call_id)
            if turn is not None:
                session = await reader.session(turn.session_id)
                if session is not None:
                    return answer_for(
                        session, turn=turn.number, log_end=-1, spawned=turn.number == 1
                    )
        if message.idempotency is not None:
            key = message.idempotency
            found = await reader.idempotency(message.principal, key.tool, key.key)
            if found is not None and self._clock.time() - found.created_at < IDEMPOTENCY_SECONDS:
                return _answer_again(found, key.digest)
        return None

    def claim(self, message: SpawnSession, result: SpawnResult) -> IdempotencyKey | None:
        """Return the record of this answer under its idempotency key; None if it has none."""
        key = message.idempotency
        if key is None:
            return None
        return IdempotencyKey(
            principal=message.principal,
            tool=key.tool,
            key=key.key,
            digest=key.digest,
            created_at=self._clock.time(),
            answer=msgspec.to_builtins(result),
        )


def answer_for(
    session: Session,
    *,
    turn: int,
    log_end: int,
    created: bool = False,
    spawned: bool = False,
    resumed: bool = False,
) -> SpawnResult:
    """The answer to a request that reached this session."""
    return SpawnResult(
        session_id=session.id,
        project_id=session.project_id,
        workspace_id=session.workspace_id,
        workspace_created=created,
        status=session.status,
        spawned=spawned,
        resumed=resumed,
        last_index=log_end,
        turn=turn,
    )


def _answer_again(found: IdempotencyKey, digest: bytes) -> SpawnResult:
    if found.digest != digest:
        raise Conflict("idempotency_key: it was used with other arguments", hint="choose a new key")
    return msgspec.convert(found.answer or {}, SpawnResult)
