"""Actor of one tree of sessions and its limits; the tree has one root, or several that share it.

Slots are reserved before a spawn. An agent that waits for its children holds none, so that a parent
never blocks the children it waits for. When the time of a tree is over, its agents are ended; the
clock is reset when its root is resumed after that. Where several roots share a tree, they count as
children do: a root more takes a slot, and none is resumed once the time is over.

The actor of a tree ends when none of its sessions lives: its counts are in the store.

In a cluster it runs at the home of the project in which the tree began. What lives of it on another
node is reported by the branch there (`branch.py`), and reached through it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Final

from oubliette.actors.session.messages import (
    AgentBlocked,
    AgentBusy,
    AgentCost,
    LimitNotice,
    LogGrown,
    RootCaller,
    SessionFinished,
)
from oubliette.actors.session.session_end import log_too_large
from oubliette.actors.store.actor import Transact
from oubliette.actors.store.outages import once_back
from oubliette.actors.tree.limits import refuse_above_limits, resolve_limits, tightened
from oubliette.actors.tree.local_sessions import local_session, who_waits
from oubliette.actors.tree.messages import GetUsage, JoinTree, PassToMember, Reserve, Unreserve
from oubliette.kit import Actor, Down, LocalMessage, MailboxFull, Message, handles
from oubliette.kit.retry import ask_with_retry
from oubliette.records import TERMINAL
from oubliette.runtime.store import queries
from oubliette.runtime.store.operations import PutMeta

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.messages import LimitAction
    from oubliette.actors.tree.messages import BranchMember
    from oubliette.kit import Ref
    from oubliette.records import Limits
    from oubliette.runtime.store.connection import StoreConnection

WARN_AT: Final = 0.8  # share of a limit
AGAIN_SECONDS: Final = 1.0  # until the sessions that should have ended are checked again
UNSEEN: Final = ""  # node of a session that no branch has reported


class _TimeCheck(Message):
    limit: float
    """Seconds after which sessions of the tree end."""


class _Stored(LocalMessage):
    living: frozenset[str]
    ended: frozenset[str]


class TreeActor(Actor):
    """Actor that counts the agents of one tree; its state is read from the store at each start."""

    def __init__(self, context: ActorContext, tree_id: str, limits: Limits) -> None:
        super().__init__()
        self._context = context
        self._id = tree_id
        self._limits = limits
        self._lives: Counter[str] = Counter()
        """Sessions that live, or are about to; 2 is one that is resumed while it finishes."""
        self._working: frozenset[str] = frozenset()
        self._waiting: frozenset[str] = frozenset()
        self._cost: dict[str, float] = {}
        """Cost in USD of every session of the tree."""
        self._logs: Counter[str] = Counter()
        """Bytes of the events of every session that has any."""
        self._began = 0.0
        """Monotonic second: who sets the machine's clock makes no tree older."""
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
        self._callers: dict[str, RootCaller] = {}
        """Root → its caller."""
        self._nodes: dict[str, str] = {}
        """Session → its node, if that is another one."""

    async def on_start(self) -> None:
        """Read the tree's sessions, their cost and their age."""
        sessions, reset_at = await once_back(lambda: self._context.reader.run(self._stored))
        here = await once_back(self._context.projects_here)
        began = now = self._context.clock.time()
        for session in sessions:
            if here is not None and session.project_id not in here:
                self._nodes[session.id] = UNSEEN
            self._cost[session.id] = session.cost_usd
            self._logs[session.id] = session.log_bytes
            began = min(began, session.created_at)
            self._roots[session.id] = self._root_of(session.id, session.root_session_id)
            self._note_time(session.id, session.limits)
            if session.status not in TERMINAL:
                self._lives[session.id] = 1
            if session.status in {"created", "running"}:
                self._working |= {session.id}
        self._waiting = await who_waits(self._context, set(self._lives) - set(self._nodes))
        for root in sessions:  # what the actor before this one may not have passed on
            if root.depth == 0:
                self._pass_on(
                    RootCaller(
                        root_session_id=root.id, principal=root.principal, caller_id=root.caller_id
                    )
                )
        if reset_at is not None:
            began = min(now, float(reset_at))
        self._began = self.clock.monotonic() - (now - began)
        self._watch_time()

    def _stored(self, connection: StoreConnection) -> tuple[list[queries.TreeMember], str | None]:
        """Return the sessions of this tree, and when its clock was reset, if it was."""
        members = queries.tree_members(connection, self._id)
        return members, queries.meta(connection, self._key)

    def _end_unless_live(self) -> None:
        """Stop once the tree is over; a later ask reaches a successor (see `ask_with_retry`)."""
        if not self._lives:
            self.stop()

    def _root_of(self, session_id: str, recorded: str) -> str:
        """Return the root above a session; early releases recorded none, in trees with only one."""
        return recorded or next(iter(self._roots.values()), session_id)

    def _tell(self, session_id: str, message: LimitNotice | RootCaller) -> bool:
        """Send a session a message; return whether it lives, as far as is known."""
        node = self._nodes.get(session_id)
        if node is None:
            session = local_session(self._context, session_id)
            if session is not None:
                with contextlib.suppress(MailboxFull):  # the end of its time comes again
                    session.tell(message)
            return session is not None
        if node == UNSEEN or session_id not in self._lives:
            return False
        self._branch(node).tell(PassToMember(session_id=session_id, message=message))
        return True

    @handles(RootCaller)
    def _pass_on(self, message: RootCaller) -> None:
        self._callers[message.root_session_id] = message
        for session_id in self._cost:
            if self._roots.get(session_id) == message.root_session_id != session_id:
                self._tell(session_id, message)

    # ------------------------------------------------------------------ other nodes

    def _branch(self, node: str) -> Ref:
        homes = self._context.homes
        assert homes is not None, "only a node of a cluster has branches"
        return homes.ref(node, self.name)

    @handles(JoinTree)
    def _join(self, message: JoinTree) -> None:
        """Count what a branch reports, and not what was known of its node before."""
        self._lose_sight(message.node)
        for member in message.members:
            self._count(member)
            self._nodes[member.session_id] = message.node
            root = self._callers.get(self._roots[member.session_id])
            if root is not None and root.root_session_id != member.session_id:
                self._tell(member.session_id, root)
        self.watch(self._branch(message.node))
        self._watch_time()
        if not message.asks or UNSEEN in self._nodes.values():
            self._look_for_unseen()

    def _count(self, member: BranchMember) -> None:
        session_id = member.session_id
        self._cost[session_id] = max(self._cost.get(session_id, 0.0), member.cost_usd)
        self._roots[session_id] = self._root_of(session_id, member.root_session_id)
        self._lives[session_id] = member.lives
        self._working = _with(self._working, session_id, member.works)
        self._waiting = _with(self._waiting, session_id, member.waits)
        self._note_time(session_id, member.limits)

    @handles(Down)
    def _branch_down(self, message: Down) -> None:
        """Look up what has become of the sessions of a branch; those that live keep their slots."""
        self._lose_sight(message.name.partition("!")[0])
        self._look_for_unseen()

    def _lose_sight(self, node: str) -> None:
        for session_id in [each for each, its in self._nodes.items() if its == node]:
            self._nodes[session_id] = UNSEEN

    def _look_for_unseen(self) -> None:
        """Have the sessions forgotten that ended, or were not made, without a report."""
        if UNSEEN not in self._nodes.values():
            self._end_unless_live()
            return
        reader = self._context.reader
        self.pipe_to_self(
            once_back(lambda: reader.tree_members(self._id)),
            lambda members: _Stored(
                living=frozenset(each.id for each in members if each.status not in TERMINAL),
                ended=frozenset(each.id for each in members if each.status in TERMINAL),
            ),
            lambda _: _Stored(living=frozenset(self._nodes), ended=frozenset()),
        )

    @handles(_Stored)
    def _forget_ended(self, stored: _Stored) -> None:
        for session_id in [each for each, node in self._nodes.items() if node == UNSEEN]:
            if session_id not in stored.living:
                self._forget(session_id, made=session_id in stored.ended)
        self._end_unless_live()

    def _forget(self, session_id: str, *, made: bool) -> None:
        """Free the slot of a session; one that was not made does not count at all."""
        self._lives.pop(session_id, None)
        self._working -= {session_id}
        self._waiting -= {session_id}
        if not made:
            for table in (self._cost, self._roots, self._tighter, self._nodes):
                table.pop(session_id, None)

    # ------------------------------------------------------------------ time

    @property
    def _key(self) -> str:
        """Key under which the store keeps the time of the last reset of this tree's clock."""
        return f"tree_began:{self._id}"

    @property
    def _age(self) -> float:
        return self.clock.monotonic() - self._began

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
        notice = LimitNotice(limit="max_wall_seconds", action=action, message=message)
        affected = [each for each in self._cost if self._ends_after(each) == limit]
        return sum(self._tell(each, notice) for each in affected)

    async def _reset_clock(self) -> None:
        """Reset the clock, since the root is resumed after the time was over."""
        self._began, self._warned = self.clock.monotonic(), frozenset()
        put = Transact(ops=(PutMeta(self._key, str(self._context.clock.time())),))
        await ask_with_retry(lambda: self._context.store.ask(put))
        self._watch_time()

    # ------------------------------------------------------------------ places

    @handles(Reserve)
    async def _reserve(self, message: Reserve) -> None:
        try:
            refuse_above_limits(message, self._limits_of(message.limits), self._limits, self._used)
            if self._age >= (self._limits_of(message.limits).max_wall_seconds or 0):
                await self._reset_clock()
        except BaseException:
            self._end_unless_live()
            raise
        self._cost.setdefault(message.session_id, 0.0)
        self._place(message.session_id, message.node)
        self._lives[message.session_id] += 1
        self._working |= {message.session_id}
        root = self._root_of(message.session_id, message.root_session_id)
        self._roots[message.session_id] = root
        self._note_time(message.session_id, message.limits)
        self._watch_time()
        if not message.counts:
            return
        limits = resolve_limits(self._limits, self._context)
        self._warn("max_agents", len(self._cost), limits.max_agents)
        busy = self._working - self._waiting
        self._warn("max_agents_at_once", len(busy), limits.max_agents_at_once)

    def _place(self, session_id: str, node: str | None) -> None:
        """Record on which node a session lives from now on."""
        if self._nodes.pop(session_id, None) == UNSEEN:
            self._lives.pop(session_id, None)  # it has ended, or would not be resumed
        if node is not None:
            self._nodes[session_id] = node

    @handles(Unreserve)
    def _unreserve(self, message: Unreserve) -> None:
        self._leave(message)
        if message.new:
            self._forget(message.session_id, made=False)

    @handles(SessionFinished)
    def _leave(self, message: SessionFinished | Unreserve) -> None:
        session_id = message.session_id
        self._lives[session_id] -= 1
        if self._lives[session_id] <= 0:
            self._forget(session_id, made=True)
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
        if limit and size >= limit:
            notice = log_too_large("trees.max_log_bytes", "tree", size, limit)
            self._tell(message.session_id, notice)

    def _warn(self, name: str, used: float, limit: float | None) -> None:
        """Warn each root, once, that a limit is near: its caller can still react."""
        if not limit or used < limit * WARN_AT:
            return
        text = f"{name} of this tree: {used:g} of {limit:g} are taken"
        notice = LimitNotice(limit=name, action="warn", message=text)
        for root in [each for each in self._cost if self._roots.get(each) == each]:
            if (name, root) not in self._near and self._tell(root, notice):
                self._near |= {(name, root)}

    @handles(GetUsage)
    def _usage(self, _: GetUsage) -> dict[str, float]:
        self._end_unless_live()
        return self._used

    @property
    def _used(self) -> dict[str, float]:
        return {
            "max_agents": len(self._cost),
            "max_agents_at_once": len(self._working - self._waiting),
            "max_cost_usd": sum(self._cost.values()),
            "max_wall_seconds": self._age,
        }


def _with(sessions: frozenset[str], session_id: str, belongs: bool) -> frozenset[str]:  # noqa: FBT001
    return sessions | {session_id} if belongs else sessions - {session_id}
