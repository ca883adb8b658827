"""Actor of one tree of sessions and its limits; the tree has one root, or several that share it.

Slots are reserved before a spawn. An agent that waits for its children holds none, so that a parent
never blocks the children it waits for. When the time of a tree is over, its agents are ended; the
clock is reset when its root is resumed after that. Where several roots share a tree, they count as
children do: a root more takes a slot, and none is resumed once the time is over.

The actor of a tree ends when none of its sessions lives: its counts are in the store.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from oubliette.actors.exploration.limits import (
    exceeded,
    limit_sources,
    resolve_limits,
    tightened,
)
from oubliette.actors.exploration.messages import GetUsage, Reserve, Unreserve
from oubliette.actors.session.messages import (
    AgentBlocked,
    AgentBusy,
    AgentCost,
    IsBlocked,
    LimitNotice,
    LogGrown,
    RootCaller,
    SessionFinished,
)
from oubliette.actors.session.session_end import log_too_large
from oubliette.actors.store.actor import Transact
from oubliette.actors.store.outages import once_back
from oubliette.kit import Actor, ActorError, Message, handles
from oubliette.kit.retry import ask_with_retry
from oubliette.records import TERMINAL
from oubliette.runtime.store import queries
from oubliette.runtime.store.operations import PutMeta

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.messages import LimitAction
    from oubliette.kit import Ref
    from oubliette.records import Limits
    from oubliette.runtime.store.connection import StoreConnection

WARN_AT: Final = 0.8  # share of a limit
ASK_SECONDS: Final = 2.0
"""Seconds that a session has for answering whether its agent waits."""
AGAIN_SECONDS: Final = 1.0  # until the sessions that should have ended are checked again


class _TimeCheck(Message):
    limit: float
    """Seconds after which sessions of the tree end."""


class ExplorationActor(Actor):
    """Actor that counts the agents of one tree; its state is read from the store at each start."""

    def __init__(self, context: ActorContext, exploration_id: str, limits: Limits) -> None:
        super().__init__()
        self._context = context
        self._id = exploration_id
        self._limits = limits
        self._lives: Counter[str] = Counter()
        """Sessions that live, or are about to; 2 is one that is resumed while it finishes."""
        self._working: frozenset[str] = frozenset()
        self._waiting: frozenset[str] = frozenset()
        self._cost: dict[str, float] = {}
        """Cost in USD of every session of the tree."""
        self._logs: Counter[str] = Counter()
        """Bytes of the events of every session that has any."""
        self._began = self._context.clock.time()
        self._tighter: dict[str, float] = {}
        """Seconds after which a session ends, if its project allows less than the tree."""
        self._timed: frozenset[float] = frozenset()
        """Limits of the time for which the next check is due."""
        self._warned: frozenset[float] = frozenset()
        """Those of which was warned."""
        self._near: frozenset[tuple[str, str]] = frozenset()
        """Limits, except the time, that were warned of, each with the root that was warned."""
        self._roots: dict[str, str] = {}
        """Root of every session of the tree, which is its own if it is a root."""

    async def on_start(self) -> None:
        """Read the tree's sessions, their cost and their age."""
        sessions, reset_at = await once_back(lambda: self._context.reader.run(self._stored))
        for session in sessions:
            self._cost[session.id] = session.cost_usd
            self._logs[session.id] = session.log_bytes
            self._began = min(self._began, session.created_at)
            self._roots[session.id] = self._root_of(session.id, session.root_session_id)
            self._note_time(session.id, session.limits)
            if session.status not in TERMINAL:
                self._lives[session.id] = 1
            if session.status in {"created", "running"}:
                self._working |= {session.id}
        await self._ask_who_waits()
        for root in sessions:  # what the actor before this one may not have passed on
            if root.depth == 0:
                self._pass_on(
                    RootCaller(
                        root_session_id=root.id, principal=root.principal, caller_id=root.caller_id
                    )
                )
        if reset_at is not None:
            self._began = float(reset_at)
        self._watch_time()

    def _stored(self, connection: StoreConnection) -> tuple[list[queries.TreeMember], str | None]:
        """Return the sessions of this tree, and when its clock was reset, if it was."""
        members = queries.tree_members(connection, self._id)
        return members, queries.meta(connection, self._key)

    def _end_unless_live(self) -> None:
        """Stop once the tree is over; a later ask reaches a successor (see `ask_with_retry`)."""
        if not self._lives:
            self.stop()

    async def _ask_who_waits(self) -> None:
        """Ask the sessions that live already whose agents wait for children.

        One that does not answer in time counts as working until it reports otherwise.
        """

        async def ask(session_id: str, session: Ref) -> str | None:
            try:
                return session_id if await session.ask(IsBlocked(), ASK_SECONDS) else None
            except ActorError:
                return None

        asked = [ask(session_id, ref) for session_id, ref in self._live_sessions()]
        self._waiting = frozenset(filter(None, await asyncio.gather(*asked)))

    def _root_of(self, session_id: str, recorded: str) -> str:
        """Return the root above a session; early releases recorded none, in trees with only one."""
        return recorded or next(iter(self._roots.values()), session_id)

    def _live_sessions(self) -> list[tuple[str, Ref]]:
        registry = self._context.session_registry
        found = [(session_id, registry.session(session_id)) for session_id in self._cost]
        return [
            (session_id, ref) for session_id, ref in found if ref is not None and ref.is_alive()
        ]

    @handles(RootCaller)
    def _pass_on(self, message: RootCaller) -> None:
        for session_id, session in self._live_sessions():
            if self._roots.get(session_id) == message.root_session_id != session_id:
                session.tell(message)

    # ------------------------------------------------------------------ time

    @property
    def _key(self) -> str:
        """Key under which the store keeps the time of the last reset of this tree's clock."""
        return f"tree_began:{self._id}"

    @property
    def _age(self) -> float:
        return self._context.clock.time() - self._began

    def _limits_of(self, own: Limits | None) -> Limits:
        """Return the limits of a session: those of the tree, or its own where they are tighter."""
        limits = resolve_limits(self._limits, self._context)
        return limits if own is None else tightened(limits, own)

    def _note_time(self, session_id: str, own: Limits | None) -> None:
        limit = self._limits_of(own).max_wall_seconds or 0.0
        if limit < self._time:
            self._tighter[session_id] = limit

    @property
    def _time(self) -> float:
        """Seconds after which the sessions of the tree end, but for those with tighter limits."""
        return self._limits_of(None).max_wall_seconds or 0.0

    def _watch_time(self) -> None:
        """Begin the checks of the time that have not begun."""
        for limit in {self._time, *self._tighter.values()} - self._timed:
            self._timed |= {limit}
            self._time_check(_TimeCheck(limit=limit))

    @handles(_TimeCheck)
    def _time_check(self, message: _TimeCheck) -> None:
        """Warn, then end the live sessions; and check again when the next of the two is due."""
        limit, age = message.limit, self._age
        if age >= limit:
            notified = self._tell_all(limit, "time_out", f"its time is over, {limit:g} s")
            # One may be starting, or being restarted, just now.
            if notified or any(self._ends_after(each) == limit for each in self._working):
                self.after(AGAIN_SECONDS, message)
            else:
                self._timed -= {limit}
            return
        if age >= limit * WARN_AT and limit not in self._warned:
            self._warned |= {limit}
            left = limit - age
            self._tell_all(limit, "warn", f"{left:.0f} s are left of {limit:g} s")
        due = limit if limit in self._warned else limit * WARN_AT
        self.after(max(due - age, 0.0) + 0.001, message)

    def _ends_after(self, session_id: str) -> float:
        return self._tighter.get(session_id, self._time)

    def _tell_all(self, limit: float, action: LimitAction, text: str) -> int:
        """Notify the live sessions that have this limit; return their number."""
        message = f"max_wall_seconds of this tree: {text}"
        living = [ref for each, ref in self._live_sessions() if self._ends_after(each) == limit]
        for session in living:
            session.tell(LimitNotice(limit="max_wall_seconds", action=action, message=message))
        return len(living)

    async def _reset_clock(self) -> None:
        """Reset the clock, since the root is resumed after the time was over."""
        self._began, self._warned = self._context.clock.time(), frozenset()
        put = Transact(ops=(PutMeta(self._key, str(self._began)),))
        await ask_with_retry(lambda: self._context.store.ask(put))
        self._watch_time()

    # ------------------------------------------------------------------ places

    @handles(Reserve)
    async def _reserve(self, message: Reserve) -> None:
        try:
            await self._check(message)
        except BaseException:
            self._end_unless_live()
            raise
        self._cost.setdefault(message.session_id, 0.0)
        self._lives[message.session_id] += 1
        self._working |= {message.session_id}
        root = self._root_of(message.session_id, message.root_session_id)
        self._roots[message.session_id] = root
        self._note_time(message.session_id, message.limits)
        self._watch_time()
        if not _counts(message):
            return
        limits = resolve_limits(self._limits, self._context)
        self._warn("max_agents", len(self._cost), limits.max_agents)
        busy = self._working - self._waiting
        self._warn("max_agents_at_once", len(busy), limits.max_agents_at_once)

    async def _check(self, message: Reserve) -> None:
        limits = self._limits_of(message.limits)
        source = limit_sources(message.limits or self._limits, message.tree_limits)
        if message.depth > (limits.max_depth or 0):
            raise exceeded("max_depth", limits.max_depth, source, f"depth {message.depth}")
        if message.new and len(self._cost) >= (limits.max_agents or 0):
            raise exceeded("max_agents", limits.max_agents, source, "one more agent")
        busy = self._working - self._waiting
        if _counts(message) and len(busy) >= (limits.max_agents_at_once or 0):
            raise exceeded(
                "max_agents_at_once", limits.max_agents_at_once, source, "one more at once"
            )
        cost = sum(self._cost.values())
        if limits.max_cost_usd is not None and cost >= limits.max_cost_usd > 0:
            raise exceeded("max_cost_usd", limits.max_cost_usd, source, f"{cost:.2f} USD")
        age = self._age
        if age >= (limits.max_wall_seconds or 0):
            if _counts(message):
                raise exceeded("max_wall_seconds", limits.max_wall_seconds, source, f"{age:.0f} s")
            await self._reset_clock()

    @handles(Unreserve)
    def _unreserve(self, message: Unreserve) -> None:
        if message.new:
            self._cost.pop(message.session_id, None)
            self._roots.pop(message.session_id, None)
            self._tighter.pop(message.session_id, None)
        self._leave(message)

    @handles(SessionFinished)
    def _leave(self, message: SessionFinished | Unreserve) -> None:
        session_id = message.session_id
        self._lives[session_id] -= 1
        if self._lives[session_id] <= 0:
            del self._lives[session_id]
            self._working -= {session_id}
            self._waiting -= {session_id}
        self._end_unless_live()

    @handles(AgentBlocked)
    def _waits(self, message: AgentBlocked) -> None:
        if message.waits:
            self._waiting |= {message.session_id}
        else:
            self._waiting -= {message.session_id}

    @handles(AgentBusy)
    def _works(self, message: AgentBusy) -> None:
        if message.works:
            self._working |= {message.session_id}
        else:
            self._working -= {message.session_id}
            self._waiting -= {message.session_id}

    @handles(AgentCost)
    def _costs(self, message: AgentCost) -> None:
        self._cost[message.session_id] = message.cost_usd
        limit = resolve_limits(self._limits, self._context).max_cost_usd
        self._warn("max_cost_usd", sum(self._cost.values()), limit)

    @handles(LogGrown)
    def _log_grown(self, message: LogGrown) -> None:
        """Interrupt the session that writes on above the limit, and no other one of the tree."""
        self._logs[message.session_id] = message.log_bytes
        limit, size = self._context.config.trees.max_log_bytes, self._logs.total()
        session = self._context.session_registry.session(message.session_id)
        if limit and size >= limit and session is not None:
            session.tell(log_too_large("trees.max_log_bytes", "tree", size, limit))

    def _warn(self, name: str, used: float, limit: float | None) -> None:
        """Warn each root, once, that a limit is near: its caller can still react."""
        if not limit or used < limit * WARN_AT:
            return
        text = f"{name} of this tree: {used:g} of {limit:g} are taken"
        for session_id, session in self._live_sessions():
            warned = (name, session_id)
            if self._roots.get(session_id) == session_id and warned not in self._near:
                self._near |= {warned}
                session.tell(LimitNotice(limit=name, action="warn", message=text))

    @handles(GetUsage)
    def _usage(self, _: GetUsage) -> dict[str, float]:
        self._end_unless_live()
        return {
            "max_agents": len(self._cost),
            "max_agents_at_once": len(self._working - self._waiting),
            "max_cost_usd": sum(self._cost.values()),
            "max_wall_seconds": self._age,
        }


def _counts(message: Reserve) -> bool:
    """Whether the session takes one of the slots: a child, or one root of several."""
    return message.depth > 0 or message.tree_limits is not None
