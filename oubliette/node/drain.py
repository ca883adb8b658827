"""DrainActor, which empties a node: sessions that rest are ended, and projects move elsewhere.

It also moves single projects that this node has taken over from a lost one and is not fit for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import structlog

from oubliette.actors.messages import EndSession
from oubliette.actors.store.actor import FollowLog, LogGrew
from oubliette.errors import Conflict, NotFound, OublietteError
from oubliette.kit import Actor, ActorDead, LocalMessage, Message, Reply, handles
from oubliette.node.moving import hand_over, move_project
from oubliette.records import TERMINAL

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.actors.context import ActorContext
    from oubliette.kit import ActorTimer
    from oubliette.node.homes import ClusterHomes

DRAIN: Final = "drain"
"""Name of the actor."""
REASON: Final = "its node is drained"
AGAIN_SECONDS: Final = 5.0
"""Time after which a project that could not be moved is tried again."""
END_SECONDS: Final = 15.0

log = structlog.get_logger("oubliette.node")


class SetDraining(Message, Reply[None]):
    """To the DrainActor: empty the node, or stop emptying it."""

    draining: bool


class MoveMisplaced(Message):
    """To the DrainActor: move projects away that were taken over and do not fit here."""


class _RoundDone(LocalMessage):
    left: int
    """Projects that are still here."""
    again: bool
    """Whether one of them is to be tried again without a notice."""


class _LookAgain(LocalMessage):
    pass


class _TimeOver(LocalMessage):
    pass


class DrainActor(Actor):
    """Empties the node while it is drained.

    A session is ended when no turn of it runs or waits, so that no turn is lost; a message to it
    resumes it on the node to which its project has moved. After `cluster.drain_seconds` turns that
    still run are interrupted.
    """

    mailbox_size: ClassVar[int] = 10_000

    def __init__(self, context: ActorContext, homes: ClusterHomes, home: Path) -> None:
        super().__init__()
        self._context = context
        self._homes = homes
        self._home = home
        self._draining = False
        self._overdue = False
        """Whether the time for turns is over."""
        self._misplaced = False
        """Whether projects may be here that do not fit."""
        self._working = False
        self._noticed = False
        """Whether something may have changed since the round that works now has begun."""
        self._followed: set[str] = set()
        self._timers: list[ActorTimer] = []

    @handles(SetDraining)
    def _set(self, message: SetDraining) -> None:
        if message.draining == self._draining:
            return
        self._draining, self._overdue = message.draining, False
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if not self._draining:
            log.info("node is not drained any more")
            return
        log.info("node is drained")
        self._timers.append(self.after(self._context.config.cluster.drain_seconds, _TimeOver()))
        self._begin()

    @handles(_TimeOver)
    def _time_over(self, _: _TimeOver) -> None:
        self._overdue = True
        self._begin()

    @handles(LogGrew)
    def _log_grew(self, _: LogGrew) -> None:
        self._begin()

    @handles(MoveMisplaced)
    def _move_misplaced(self, _: MoveMisplaced) -> None:
        self._misplaced = True
        self._begin()

    @handles(_LookAgain)
    def _again(self, _: _LookAgain) -> None:
        self._begin()

    def _begin(self) -> None:
        if not (self._draining or self._misplaced):
            return
        if self._working:
            self._noticed = True
            return
        self._working, self._noticed = True, False
        work = self._round() if self._draining else self._move_away()
        self.pipe_to_self(work, lambda done: done, _failed)

    @handles(_RoundDone)
    def _round_done(self, message: _RoundDone) -> None:
        self._working = False
        if not message.left:
            self._misplaced = self._misplaced and self._noticed
            if self._draining:
                log.info("node is empty")
        if self._noticed:
            self._begin()
        elif message.again:
            self._timers.append(self.after(AGAIN_SECONDS, _LookAgain()))

    async def _round(self) -> _RoundDone:
        """Look at each project once."""
        left, again = 0, False
        for project_id in sorted(await self._homes.projects_here()):
            if not self._draining:
                break
            living = await self._context.reader.live_sessions(project_id)
            ended = [await self._end(session.id) for session in living]
            if not all(ended):
                left += 1
                continue
            if not await self._moved(project_id):
                left, again = left + 1, True
        return _RoundDone(left=left, again=again)

    async def _move_away(self) -> _RoundDone:
        """Move the projects that do not fit here and in which nothing lives."""
        left = 0
        for project_id in await self._homes.misplaced():
            living = await self._context.reader.live_sessions(project_id)
            if living or not await self._moved(project_id):
                left += 1
        return _RoundDone(left=left, again=left > 0)

    async def _moved(self, project_id: str) -> bool:
        try:
            projects = self.system.ref("projects")
            project = await self._context.reader.project(project_id)
            if project is None or project.deleted_at is not None:  # it has trees, and no files
                target = await self._homes.choose_for(project_id)
                return await hand_over(self._homes, project_id, target)
            await move_project(self._homes, self._home, projects, project_id)
        except (OublietteError, ActorDead) as error:
            log.warning("project stays for now", project_id=project_id, reason=str(error))
            return False
        return True

    async def _end(self, session_id: str) -> bool:
        """End a session that rests, or any once the time is over; return whether it ended."""
        ref = self._context.session_registry.session(session_id)
        if ref is None:
            return False
        if session_id not in self._followed:
            self._followed.add(session_id)
            follow = FollowLog(name=self.name, session_id=session_id)
            await self._context.store.ask(follow)
        message = EndSession(reason=REASON, final=False, at_rest=not self._overdue)
        try:
            await ref.ask(message, timeout=END_SECONDS)
        except (Conflict, NotFound):
            return False
        except ActorDead:  # it has ended, or is being restarted: its record decides
            return not await self._lives(session_id)
        return True

    async def _lives(self, session_id: str) -> bool:
        record = await self._context.reader.session(session_id)
        return record is not None and record.status not in TERMINAL


def _failed(error: BaseException) -> _RoundDone:
    log.warning("the node could not be looked at", reason=str(error))
    return _RoundDone(left=1, again=True)
