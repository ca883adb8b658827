"""Snapshots of a session's workspace: one before each turn, which waits for it, and one after.

Without an actor for them (`snapshots.mode = "off"`, or no git) turns wait for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from oubliette.actors.session.effects import AppendEvent
from oubliette.actors.snapshot_requests import SNAPSHOTS, KeepSessionFiles, TakeSnapshot
from oubliette.errors import NotFound
from oubliette.kit import LocalMessage, Message
from oubliette.runtime.agents.base import session_files
from oubliette.runtime.snapshots.snapshot_records import Brought, Moment, Snapshot, SnapshotLabel

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.effects import Effects
    from oubliette.kit import Actor, Ref
    from oubliette.records import Session

QUEUED: Final = 10
"""Snapshots of other sessions in the same workspace that one may have to wait for."""


class TurnSnapshot(LocalMessage):
    """To a SessionActor: the outcome of a snapshot."""

    turn: int
    moment: Moment
    snapshot: Snapshot | None = None
    error: BaseException | None = None


class SnapshotOverdue(Message):
    """Deadline at which the snapshot before a turn should have been taken."""

    turn: int


class TurnSnapshots:
    """Part of a SessionActor that has its workspace stored around each turn; same lifetime."""

    __slots__ = (
        "_actor",
        "_awaited",
        "_context",
        "_prepared",
        "_reasons",
        "_running",
        "_without_memory",
    )

    def __init__(self, actor: Actor, context: ActorContext) -> None:
        self._actor = actor
        self._context = context
        self._awaited: int | None = None
        """The turn whose snapshot is being taken."""
        self._prepared = 0
        """The newest turn for which one was requested."""
        self._without_memory = False
        """Whether the agent of a session that goes on has no files of the turns before."""
        self._running: int | None = None
        """The turn that runs."""
        self._reasons: set[str] = set()
        """Reasons for missing snapshots that are in the log."""

    @property
    def awaited(self) -> bool:
        return self._awaited is not None

    @property
    def _wait_seconds(self) -> float:
        config = self._context.config
        if config.cluster.snapshots:  # the files may have to come from elsewhere
            return max(config.snapshots.wait_seconds, config.snapshots.seconds)
        return config.snapshots.wait_seconds

    def prepare(self, record: Session, turn: int) -> None:
        """Request the snapshot before a turn, once."""
        if turn > self._prepared:
            self._prepared = turn
            self._without_memory = turn > 1 and not self._session_files(record)
            self._awaited = turn if self._request(record, turn, "start") else None
            if self._awaited is not None:
                self._actor.after(self._wait_seconds, SnapshotOverdue(turn=turn))

    def turn_began(self, turn: int) -> None:
        self._running = turn

    def turn_over(self) -> int | None:
        """The turn that has just ended, if one ran."""
        turn, self._running = self._running, None
        return turn

    def before_interrupt(self, record: Session) -> None:
        """Request a snapshot of what the running turn has done so far; nothing waits for it.

        Some agents take back what they did when they are interrupted.
        """
        if self._running is not None:
            self._request(record, self._running, "interrupt")

    def turn_ended(self, record: Session, turn: int) -> None:
        """Request the snapshot after a turn."""
        self._request(record, turn, "end")
        self._keep_session_files(record, turn, "end")

    def recovered(self, record: Session, turn: int) -> None:
        """Request the snapshot after the last turn, if it is over and its server was killed."""
        if turn > 0 and self._running is None:
            self._without_memory = not self._session_files(record)
            self._request(record, turn, "end", unless_stored=True)

    def session_ended(self, record: Session) -> None:
        """Request the last snapshot of a session that has no running turn."""
        found = self._ref()
        if found is not None:
            found.tell(self._message(record, record.turn_count, "final"))
            self._keep_session_files(record, record.turn_count, "final")

    def overdue(self, message: SnapshotOverdue) -> Effects:
        """Begin the turn nevertheless."""
        if self._awaited != message.turn:
            return ()
        self._awaited = None
        reason = f"it takes longer than snapshots.wait_seconds ({self._wait_seconds:g} s)"
        return self._missing(message.turn, "start", reason)

    def taken(self, message: TurnSnapshot) -> Effects:
        """Return the event of a snapshot that has changed something, or is missing."""
        if message.moment == "start" and self._awaited == message.turn:
            self._awaited = None
        found = message.snapshot
        if found is None:
            if isinstance(message.error, NotFound):
                return ()  # the workspace was deleted meanwhile
            return self._missing(message.turn, message.moment, str(message.error))
        brought: Effects = ()
        if found.brought is not None:
            text = _restored("the files of the workspace", found.brought)
            if self._without_memory:
                text += "; the agent keeps no files of its session that are copied, so it does not"
                text += " know what came before"
            brought = (_event(text),)
        if found.home is not None:
            brought = (*brought, _event(_restored("the files of the agent's session", found.home)))
        if found.warning:
            brought = (*brought, *self._not_copied(message, found.warning))
        if not found.changed:
            return brought
        shown = {
            "ref": found.ref,
            "turn": message.turn,
            "moment": message.moment,
            "files": found.files,
            "insertions": found.insertions,
            "deletions": found.deletions,
            "left_out": found.left_out,
            "left_out_shown": found.left_out_shown,
            "torn": found.torn,
        }
        return *brought, AppendEvent("snapshot", shown)

    def _missing(self, turn: int, moment: Moment, reason: str) -> Effects:
        if reason in self._reasons:
            return ()
        self._reasons.add(reason)
        text = f"no snapshot of the workspace: {reason}"
        shown = {"kind": "snapshot_missing", "turn": turn, "moment": moment, "message": text}
        return (AppendEvent("system", shown),)

    def _not_copied(self, message: TurnSnapshot, reason: str) -> Effects:
        if reason in self._reasons:
            return ()
        self._reasons.add(reason)
        shown = {"kind": "snapshot_not_copied", "turn": message.turn, "message": reason}
        return (AppendEvent("system", shown),)

    def _request(
        self, record: Session, turn: int, moment: Moment, *, unless_stored: bool = False
    ) -> bool:
        found = self._ref()
        if found is None:
            return False
        self._actor.ask_to_self(
            found,
            replace(self._message(record, turn, moment), unless_stored=unless_stored),
            lambda snapshot: TurnSnapshot(turn=turn, moment=moment, snapshot=snapshot),
            lambda error: TurnSnapshot(turn=turn, moment=moment, error=error),
            timeout=self._context.config.snapshots.seconds * QUEUED,
        )
        return True

    def _session_files(self, record: Session) -> tuple[str, ...]:
        agent = self._context.agents.get(record.agent)
        return () if agent is None else session_files(agent)

    def _keep_session_files(self, record: Session, turn: int, moment: Moment) -> None:
        """Have the files of the agent's session stored, where sessions go on on other nodes."""
        found, paths = self._ref(), self._session_files(record)
        if found is None or self._context.homes is None or not paths:
            return
        if self._context.config.cluster.snapshots:
            label = self._message(record, turn, moment).label
            keep = KeepSessionFiles(
                project_id=record.project_id, session_id=record.id, paths=paths, label=label
            )
            found.tell(keep)

    def _ref(self) -> Ref | None:
        return self._actor.system.lookup(SNAPSHOTS)

    def _message(self, record: Session, turn: int, moment: Moment) -> TakeSnapshot:
        label = SnapshotLabel(
            session_id=record.id,
            turn=turn,
            moment=moment,
            agent=record.agent,
            model=record.model or "",
            cost_usd=record.cost_usd,
            when=self._actor.clock.time(),
        )
        return TakeSnapshot(
            project_id=record.project_id, workspace_id=record.workspace_id, label=label
        )


def _restored(what: str, brought: Brought) -> str:
    text = f"{what} came from another node: {brought.written}"
    if brought.missing:
        text += f"; {brought.missing} are not as they were, as snapshots lack them"
    return text


def _event(text: str) -> AppendEvent:
    return AppendEvent("system", {"kind": "workspace_restored", "message": text})
