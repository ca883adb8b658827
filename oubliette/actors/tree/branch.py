"""Branch: the sessions of a tree on a node that is not the home of the tree.

Only the TreeActor at the home of the tree counts. A branch passes on what the sessions of
its node report and what the tree has for them. It remembers what lives here, and reports all of
that to each actor of the tree that it finds: after a restart, or at another home.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from oubliette.actors.session.messages import (
    AgentBlocked,
    AgentBusy,
    AgentCost,
    LogGrown,
    RootCaller,
    SessionFinished,
)
from oubliette.actors.store.outages import once_back
from oubliette.actors.tree.local_sessions import local_session, who_waits
from oubliette.actors.tree.messages import BranchMember, JoinTree, PassToMember, Reserve, Unreserve
from oubliette.errors import Unavailable
from oubliette.kit import Actor, AskTimeout, Down, LocalMessage, Message, handles
from oubliette.kit.errors import reason_of

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.tree.messages import OpenTree
    from oubliette.kit import Deferred, Ref

OPEN_SECONDS: Final = 5.0
"""Time in which the home of the tree has to open it; requests wait as long until it is found."""
COUNT_SECONDS: Final = 10.0
"""Time in which it has to answer whether there is a place."""
AGAIN_SECONDS: Final = 0.5
"""Time until the home of the tree is looked for again."""

log = structlog.get_logger("oubliette.node")


class _TreeOpened(LocalMessage):
    node: str


class _TreeNotOpened(LocalMessage):
    reason: str


class _OpenAgain(LocalMessage):
    pass


class _PlaceAnswered(LocalMessage):
    number: int
    error: BaseException | None = None


async def counting_node(context: ActorContext, project_id: str) -> str | None:
    """Return the node that counts the trees of a project; None: this one.

    A project that is deleted keeps its home as long as one of its trees lives.

    Raises:
        Unavailable: the machine of the project is lost, or its home is unknown.
    """
    homes = context.homes
    if homes is None:
        return None
    homes.forget(project_id)
    return await homes.home(project_id, needed=True)


class BranchActor(Actor):
    """Actor that stands for a tree on a node that does not count it; it ends with its sessions."""

    def __init__(self, context: ActorContext, opened: OpenTree) -> None:
        super().__init__()
        self._context = context
        assert context.homes is not None, "only a node of a cluster has branches"
        self._homes = context.homes
        self._opened = opened
        self._members: dict[str, BranchMember] = {}
        self._tree: Ref | None = None
        """The actor that counts; None: it is being looked for."""
        self._held: list[tuple[Reserve, Deferred]] = []
        """Requests that wait for it."""
        self._asked: dict[int, tuple[Reserve, Deferred]] = {}
        """Requests that it has."""
        self._numbers = itertools.count()
        self._lost_at = context.clock.monotonic()
        """Monotonic second since which it is looked for."""

    async def on_start(self) -> None:
        """Read which sessions of the tree live here, and look for the actor that counts."""
        tree, reader = self._opened.tree_id, self._context.reader
        here = await once_back(self._homes.projects_here)
        alive = await once_back(lambda: reader.live_sessions(exploration_id=tree))
        living = [each for each in alive if each.project_id in here]
        waiting = await who_waits(self._context, [each.id for each in living])
        for each in living:
            self._members[each.id] = BranchMember(
                session_id=each.id,
                root_session_id=each.root_session_id,
                limits=each.limits,
                works=each.status in {"created", "running"},
                waits=each.id in waiting,
                cost_usd=each.cost_usd,
            )
        self._look_again()

    # ------------------------------------------------------------------ the tree

    @handles(_OpenAgain)
    def _look_again(self, _: _OpenAgain | None = None) -> None:
        self.pipe_to_self(
            self._open(),
            lambda node: _TreeOpened(node=node),
            lambda error: _TreeNotOpened(reason=reason_of(error)),
        )

    async def _open(self) -> str:
        """Have the tree opened at its home; return that node."""
        opened = msgspec.structs.replace(self._opened, at_home=True)
        node = await counting_node(self._context, opened.project_id) or self._homes.name
        # If that is this node, the tree's actor takes the place of this one.
        await self._homes.ref(node, "trees").ask(opened, OPEN_SECONDS)
        return node

    @handles(_TreeOpened)
    def _found(self, message: _TreeOpened) -> None:
        self._tree = self._homes.ref(message.node, self.name)
        self.watch(self._tree)
        held, self._held = [each for each in self._held if not each[1].done], []
        members = tuple(self._members.values())
        self._tree.tell(JoinTree(node=self._homes.name, members=members, asks=bool(held)))
        for reserve, answer in held:
            self._ask(reserve, answer)
        self._end_unless_used()

    @handles(_TreeNotOpened)
    def _not_found(self, message: _TreeNotOpened) -> None:
        if self.clock.monotonic() >= self._lost_at + OPEN_SECONDS:
            tree = self._opened.tree_id
            log.warning("a tree is not reached", tree=tree, reason=message.reason)
            for _, answer in self._held:
                answer.set_error(_unreached(message.reason))
            self._held.clear()
        if not self._end_unless_used():
            self.after(AGAIN_SECONDS, _OpenAgain())

    @handles(Down)
    def _tree_down(self, message: Down) -> None:
        if self._tree is None or message.name != self._tree.name:
            return
        self._tree, self._lost_at = None, self.clock.monotonic()
        if not self._end_unless_used():
            self.after(AGAIN_SECONDS, _OpenAgain())

    def _end_unless_used(self) -> bool:
        """End if nothing of the tree is here any more; return whether that is so."""
        if self._members or self._held or self._asked:
            return False
        self.stop()
        return True

    # ------------------------------------------------------------------ places

    @handles(Reserve)
    def _reserve(self, message: Reserve) -> None:
        answer = self.defer()
        if self._tree is None:
            self._held.append((message, answer))
        else:
            self._ask(message, answer)

    def _ask(self, reserve: Reserve, answer: Deferred) -> None:
        assert self._tree is not None
        number = next(self._numbers)
        self._asked[number] = reserve, answer
        self.ask_to_self(
            self._tree,
            msgspec.structs.replace(reserve, node=self._homes.name),
            lambda _: _PlaceAnswered(number=number),
            lambda error: _PlaceAnswered(number=number, error=error),
            COUNT_SECONDS,
        )

    @handles(_PlaceAnswered)
    def _counted(self, message: _PlaceAnswered) -> None:
        reserve, answer = self._asked.pop(message.number)
        if message.error is None:
            self._enter(reserve)
            if not answer.set():  # the asker has given up, and starts nothing
                self._leave(Unreserve(session_id=reserve.session_id, new=reserve.new))
            return
        error = message.error
        if isinstance(error, AskTimeout):  # it may have reserved, or may do so later
            self._forward(Unreserve(session_id=reserve.session_id, new=reserve.new))
            error = _unreached(reason_of(error))
        answer.set_error(error)
        self._end_unless_used()

    def _enter(self, reserve: Reserve) -> None:
        known = self._members.get(reserve.session_id)
        self._members[reserve.session_id] = BranchMember(
            session_id=reserve.session_id,
            root_session_id=reserve.root_session_id,
            limits=reserve.limits,
            lives=1 if known is None else known.lives + 1,
            cost_usd=0.0 if known is None else known.cost_usd,
        )

    # ------------------------------------------------------------------ between sessions and tree

    @handles(Unreserve, SessionFinished)
    def _leave(self, message: SessionFinished | Unreserve) -> None:
        known = self._members.pop(message.session_id, None)
        if known is not None and known.lives > 1:
            left = msgspec.structs.replace(known, lives=known.lives - 1)
            self._members[message.session_id] = left
        self._forward(message)
        self._end_unless_used()

    @handles(AgentBlocked)
    def _waits(self, message: AgentBlocked) -> None:
        self._note(message.session_id, waits=message.waits)
        self._forward(message)

    @handles(AgentBusy)
    def _works(self, message: AgentBusy) -> None:
        if message.works:
            self._note(message.session_id, works=True)
        else:
            self._note(message.session_id, works=False, waits=False)
        self._forward(message)

    @handles(AgentCost)
    def _costs(self, message: AgentCost) -> None:
        self._note(message.session_id, cost_usd=message.cost_usd)
        self._forward(message)

    @handles(LogGrown, RootCaller)
    def _forward(self, message: Message) -> None:
        if self._tree is not None:
            self._tree.tell(message)

    def _note(self, session_id: str, **changed: object) -> None:
        known = self._members.get(session_id)
        if known is not None:
            self._members[session_id] = msgspec.structs.replace(known, **changed)

    @handles(PassToMember)
    def _pass_on(self, message: PassToMember) -> None:
        session = local_session(self._context, message.session_id)
        if session is not None:
            session.tell(message.message)


def _unreached(reason: str) -> Unavailable:
    return Unavailable(
        f"the node that counts the sessions of this tree does not answer: {reason}",
        hint="try again in some seconds",
    )
