"""Share, what this node has of one limit: its decisions, on plain data.

Whoever uses it keeps to this order: `state` says what the node keeps, and gives up the rest at that
moment; the answer of the database is told to `granted`, or its absence to `unanswered`.

The invariant: at any time the node may use no more than the database has recorded as held by it,
and what all nodes hold and what is free are never more than the limit. So of units that are given
back no more are in use, and of those that refill no more were used in any time than `most` and what
refills in it. Exceptions are `take_anyway`, and what a node allows itself while the database is
away: the limit divided by the nodes, or what it has, if that is more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from oubliette.runtime.store.postgres.cluster.limit_shares import ShareStatement

if TYPE_CHECKING:
    from oubliette.actors.shares import ShareLimit
    from oubliette.runtime.store.postgres.cluster.limit_shares import ShareGrant

SPARE_SECONDS: Final = 0.25
"""A node takes as many units ahead as refill in this time, ..."""
SPARE_PART: Final = 8
"""... and at most the limit divided by this."""
SHORT_SECONDS: Final = 1.0
"""Time in which a node takes nothing ahead, after there was too little for all."""
REFUSE_SECONDS: Final = 0.02
"""Time at least for which calls are refused when all units are used that refill: the database is
asked so often, however many calls there are."""
UNSURE: Final = -1


class Share:
    """This node's share of one limit. All times are seconds of one monotonic clock.

    Args:
        scope: What is limited.
        limit: The limit.
    """

    __slots__ = (
        "_answer",
        "_earned",
        "_earned_at",
        "_known",
        "_least",
        "_refused_until",
        "_short_until",
        "_spare",
        "free",
        "limit",
        "recalling",
        "scope",
        "spent",
        "told",
        "used",
        "waiting",
    )

    def __init__(self, scope: str, limit: ShareLimit) -> None:
        self.scope = scope
        self.limit = limit
        self.free = 0
        """Units that may be used; negative: so many are used that the node has not got."""
        self.used = 0
        """Units in use, of those that are given back."""
        self.spent = 0
        """Units used up, of those that refill."""
        self.waiting = 0
        """Calls that wait for a unit."""
        self.told = 0
        """Units that the node has according to the database; `UNSURE`: an answer was lost."""
        self.recalling = 0
        """Number of the recall whose answers are waited for; 0: none."""
        self._known = 0
        self._answer = 0
        self._least = 0
        """Smallest number of free units since the latest look."""
        self._short_until = -math.inf
        self._refused_until = -math.inf
        self._earned = 0.0
        self._earned_at: float | None = None
        """Since when the node counts for itself, as the database is away; None: it is there."""
        spare = limit.most // SPARE_PART
        if limit.rate is not None:
            spare = min(spare, math.ceil(limit.rate * SPARE_SECONDS))
        self._spare = spare

    # ------------------------------------------------------------------ use

    def take(self) -> bool:
        """Use a unit, if there is one; return whether there was."""
        if self.free <= 0:
            return False
        self._use()
        return True

    def take_anyway(self) -> None:
        """Use a unit, whether there is one or not."""
        self._use()

    def take_alone(self, nodes: int, now: float) -> bool:
        """Use a unit of what the node has, or of its part of the limit while nobody can be asked.

        Args:
            nodes: Number of nodes that share the limit.
            now: The time.
        """
        if self.take():
            return True
        if self.limit.rate is None:
            if self.used >= max(1, self.limit.most // nodes):
                return False
            self._use()
            return True
        if self._earned_at is None:
            self._earned_at = now
        rate, most = self.limit.rate / nodes, max(1.0, self.limit.most / nodes)
        self._earned = min(most, self._earned + rate * (now - self._earned_at))
        self._earned_at = now
        if self._earned < 1.0:
            self._refused_until = now + (1.0 - self._earned) / rate
            return False
        # Not counted as spent: the pool does not know of it, and refills as it would have.
        self._earned -= 1.0
        return True

    def give_back(self) -> None:
        """Give back a unit that was used; without effect on one of those that refill."""
        if self.limit.rate is None:
            self.free += 1
            self.used -= 1

    def _use(self) -> None:
        self.free -= 1
        self._least = min(self._least, self.free)
        if self.limit.rate is None:
            self.used += 1
        else:
            self.spent += 1

    # ------------------------------------------------------------------ when to ask

    def refused_for(self, now: float) -> float:
        """Return the seconds for which calls are refused without asking; not positive: ask."""
        return self._refused_until - now

    def low(self, now: float) -> bool:
        """Whether to ask, although no call waits: soon one would."""
        if self.limit.rate is not None and self.free <= 0 and self.told:
            return True  # the pool cannot refill for others what it does not know to be used
        return 2 * self.free < self._spare and now >= self._short_until

    def due(self, now: float) -> bool:
        """Return whether there is something to tell the database, or to ask it for."""
        return bool(
            self.waiting or self._answer or self.free < 0 or self.told == UNSURE or self.low(now)
        )

    def look(self) -> int:
        """How many units were not used since the latest look."""
        surplus, self._least = max(0, self._least), self.free
        return surplus

    @property
    def over(self) -> bool:
        """Whether there is nothing to remember: the node has no unit, and uses none."""
        return not (self.used or self.free or self.waiting or self.told or self._answer)

    @property
    def stated(self) -> bool:
        return self.told == self.used + self.free

    # ------------------------------------------------------------------ the database

    def recalled(self, number: int) -> None:
        """Record that another node needs what this one does not use."""
        self._answer = max(self._answer, number)

    def state(self, now: float, surplus: int = 0) -> ShareStatement:
        """Return what to tell the database; what it does not keep is given up now.

        Args:
            now: The time.
            surplus: Units that the node gives back, of those that are free.
        """
        free = 0 if self._answer else max(0, self.free - surplus)
        self.free = min(self.free, free)
        self._least = min(self._least, self.free)
        # What refills is asked for at most every REFUSE_SECONDS once it is short: then all of it.
        short = now < self._short_until and not (self.waiting and self.limit.rate is not None)
        ahead = 0 if self._answer or surplus or short else max(0, self._spare - free)
        if self._answer:
            self._short_until = now + SHORT_SECONDS
        return ShareStatement(
            scope=self.scope,
            rate=self.limit.rate,
            most=self.limit.most,
            keep=self.used + free,
            spent=self.spent,
            known=self._known,
            need=self.waiting,
            spare=ahead,
            answer=self._answer,
            recall=self.recalling,
        )

    def granted(self, stated: ShareStatement, grant: ShareGrant, now: float) -> None:
        """Take what the database has answered to a statement."""
        self.told = stated.keep + grant.granted
        if self.limit.rate is None:
            self.free = self.told - self.used  # what was used without having it counts now
        else:
            self.free += grant.granted
        self._known = stated.spent
        self._earned, self._earned_at = 0.0, None
        self.recalling = grant.recalling
        if self._answer == stated.answer:
            self._answer = 0
        if grant.granted < stated.need + stated.spare:
            self._short_until = now + SHORT_SECONDS
        if grant.granted < stated.need and not grant.recalling and self.limit.rate is not None:
            self._refused_until = now + max(grant.seconds, REFUSE_SECONDS)
        else:
            self._refused_until = -math.inf

    def unanswered(self) -> None:
        """Record that the database has not answered; it may have settled all the same."""
        self.told = UNSURE
