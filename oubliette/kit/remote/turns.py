"""Turns: the order of the batches of each direction between two lives, over calls and replies.

A node has two ways to hand a batch to a peer: a call of its own, and the reply to a call of the
peer. The carrier promises no order between the two, so one series of numbers runs over both.

A reply is made only while no call of its node is under way. So everything before it has been taken
when it arrives, and it never waits. The batch of a call may be early, by the reply before it: it
waits until the call of this node that brings that reply has returned. No circle of waits is
possible, since the peer had handled that call before it numbered the early batch.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Awaitable


class Turns:
    """Numbers of one link; they begin again with each life of either side."""

    def __init__(self) -> None:
        self._given = 0
        self._taken = 0
        self._calling = False
        self._return: asyncio.Future[None] | None = None

    def restart(self) -> None:
        """Begin the numbers of two lives that have just met."""
        self._given = self._taken = 0

    def give(self) -> int:
        """Return the number of the next batch of this node."""
        self._given += 1
        return self._given

    def take(self, turn: int) -> Literal["next", "again", "missing"]:
        """Note that a batch of the peer is handled now; return whether it is the next one."""
        if turn == self._taken + 1:
            self._taken = turn
            return "next"
        return "again" if turn <= self._taken else "missing"

    def is_early(self, turn: int) -> bool:
        """Return whether a batch has to wait for the reply to the call that is under way."""
        return self._calling and turn > self._taken + 1

    async def call(self, sending: Awaitable[list[bytes]]) -> list[bytes]:
        """Await a call of this node and return its reply, which is to be taken at once.

        It ends by the deadline of the transport, and so do the waits for it.
        """
        self._calling = True
        try:
            return await sending
        finally:
            self._calling = False
            self.free()

    def free(self) -> None:
        """Let an early batch look again."""
        waiting, self._return = self._return, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def returned(self) -> None:
        """Wait until the call that is under way has returned."""
        if self._return is None:
            self._return = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._return)
