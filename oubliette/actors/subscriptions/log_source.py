"""Reads of the log for subscriptions: of one session, of a project, of all sessions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.actors.messages import EventsCommitted, EventsDeleted
from oubliette.actors.store.subscription import ASK_SECONDS
from oubliette.actors.subscriptions.cycle import SubscriptionPage

if TYPE_CHECKING:
    from oubliette.runtime.store.queries import CommitSlice, LogSlice
    from oubliette.runtime.store.reader import Reader

BATCH_EVENTS: Final = 256
BATCH_BYTES: Final = 1024 * 1024
"""Limits of one batch; a larger event comes alone."""


class LogSource(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the log that a subscription sends: one session, one project, or everything."""

    session_id: str | None = None
    project_id: str | None = None

    async def end(self, reader: Reader) -> int:
        """The cursor behind the newest event."""
        if self.session_id is not None:
            return await reader.last_index(self.session_id)
        return await reader.last_seq()

    async def read(self, reader: Reader, cursor: int) -> SubscriptionPage:
        """Return what follows `cursor`, up to the limits of a batch.

        Raises:
            TimeoutError: the read took too long.
            StorageUnavailable: the database cannot be read.
        """
        async with asyncio.timeout(ASK_SECONDS):
            if self.session_id is not None:
                found = await reader.log(self.session_id, cursor, BATCH_EVENTS, BATCH_BYTES)
                return session_page(self.session_id, cursor, found)
            slices = await reader.committed_events(
                cursor, self.project_id, BATCH_EVENTS, BATCH_BYTES
            )
            return commit_page(slices)


def session_page(session_id: str, cursor: int, found: LogSlice) -> SubscriptionPage:
    messages: list[EventsCommitted | EventsDeleted] = []
    following = cursor
    if found.truncated_before is not None:
        messages.append(
            EventsDeleted(session_id=session_id, first=cursor + 1, before=found.truncated_before)
        )
        following = found.truncated_before - 1
    if found.events:
        messages.append(EventsCommitted(events=tuple(found.events)))
        following = found.events[-1].index
    return SubscriptionPage(messages=tuple(messages), next=following, more=found.more)


def commit_page(found: CommitSlice) -> SubscriptionPage:
    messages: list[EventsCommitted | EventsDeleted] = [
        EventsDeleted(session_id=session_id, first=0, before=before)
        for session_id, before in found.cuts
    ]
    if found.events:
        messages.append(EventsCommitted(events=tuple(found.events)))
    return SubscriptionPage(messages=tuple(messages), next=found.next_seq, more=found.more)
