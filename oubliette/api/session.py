"""Session, a conversation with one agent in a container."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from oubliette.api.browser_port import OPEN_SECONDS, BrowserPort
from oubliette.api.changes import (
    CALL_SECONDS,
    ForkInfo,
    call_fork,
    read_diff,
    read_log,
    write_export,
)
from oubliette.api.errors import from_wire
from oubliette.api.event_iterator import EventIterator
from oubliette.api.files.workspace_files import WorkspaceFiles
from oubliette.api.results.views import SessionInfo
from oubliette.api.shared import subscribe
from oubliette.api.turn import Turn
from oubliette.contract.changes import CheckpointInfo, MergeInfo, PushInfo, RestoreInfo
from oubliette.errors import NotFound

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from oubliette.api.callers.caller_loops import OnPermission
    from oubliette.api.changes import ExportInfo
    from oubliette.api.context import ClientContext
    from oubliette.api.shared import Subscriber, Subscription
    from oubliette.contract.changes import Diff, TurnLog
    from oubliette.errors import OublietteError

END_SECONDS = 20.0
MERGE_SECONDS = 900.0  # for which other work on the repository may have to end first
PUSH_SECONDS = 7200.0  # the server's `repositories.clone_seconds` ends earlier
MAX_PATCH = 16 * 1024 * 1024


class Session:
    """A session: send it messages, follow its events, interrupt and end it.

    Made by `Project.spawn` and `Oubliette.session`.
    """

    def __init__(self, shared: ClientContext, answer: Mapping[str, Any]) -> None:
        self._shared = shared
        self.id: str = answer["session_id"]
        """Id of the session."""
        self.project_id: str = answer["project_id"]
        """Id of its project."""
        self.workspace_id: str = answer["workspace_id"]
        """Id of its workspace, which is /workspace/workspaces/<id> in the container."""
        self.warnings: tuple[str, ...] = tuple(answer.get("warnings") or ())
        """Parts of the last message without effect."""
        turns = answer.get("turn_count")
        self.turn: Turn | None = Turn(shared, self.id, turns, -1) if turns else None
        """The last turn: of this object, or when it was found; None if there was none."""
        self.fork_info: ForkInfo | None = None
        """Its beginning, if `fork` has started it."""

    def __repr__(self) -> str:
        return f"<Session {self.id}>"

    def events(self, *, after: int = -1, follow: bool = False) -> EventIterator:
        """Return an iterator over the events of the session, in the order of its log.

        It ends when no turn runs or waits. It may be left at any moment; `cursor` of the iterator
        is the place to continue from.

        Args:
            after: Index of the last event that is known; -1: from the beginning.
            follow: Whether to wait for further turns, until the session has finished.
        """
        self._shared.check()
        return EventIterator(self._shared, self.id, after=after, follow=follow)

    async def send(
        self,
        message: str,
        *,
        tools: Iterable[object] | None = None,
        on_permission: OnPermission | None = None,
        model: str | None = None,
        autonomy: str | None = None,
        idempotency_key: str | None = None,
    ) -> Turn:
        """Send a message; a session that has stopped is resumed. Returns when it is stored.

        Args:
            message: For the agent. It waits while a turn runs.
            tools: Tools of this program that replace those provided so far; None: unchanged.
            on_permission: Policy from now on; None: unchanged if no tools are given either.
            model: Model of the agent, if the session is resumed.
            autonomy: Actions that need no permission, if the session is resumed.
            idempotency_key: Name of this request; a repeated one sends no second message.

        Returns:
            The turn, with its result and its events.

        Raises:
            Conflict: the session was ended.
            BadTool: a tool cannot be offered.
        """
        self._shared.check()
        lease = await self._shared.loops.prepare(tools, on_permission)
        arguments: dict[str, Any] = {
            "session_id": self.id,
            "message": message,
            "model": model,
            "autonomy": autonomy or ("ask" if on_permission is not None else None),
            "idempotency_key": idempotency_key,
            **({} if lease is None else lease.arguments()),
        }
        if lease is not None:
            lease.add(self.id, self.workspace_id)
        answer = await self._shared.call("session_message", arguments)
        self._shared.started.setdefault(self.id)
        return self.began(answer, lends=bool(tools))

    def began(self, answer: Mapping[str, Any], *, lends: bool) -> Turn:
        """Record the turn that an answer of the server reports. For the package."""
        self.warnings = tuple(answer.get("warnings") or ())
        self.turn = Turn(self._shared, self.id, answer["turn"], answer["last_index"], lends=lends)
        return self.turn

    @property
    def workspace(self) -> WorkspaceFiles:
        """The files of its workspace, also while its agent works on them."""
        return WorkspaceFiles(self._shared, self.project_id, self.workspace_id)

    async def interrupt(self) -> None:
        """Interrupt the running turn; the session takes further messages. No turn is no error."""
        await self._shared.call("session_interrupt", {"session_id": self.id}, timeout=END_SECONDS)

    async def end(self, *, tree: bool = False) -> None:
        """End the session: its agent is stopped within 5 s, and no message resumes it.

        Args:
            tree: Whether its descendants are ended too.
        """
        self._shared.check()
        await end_session(self._shared, self.id, tree=tree)

    async def get(self) -> SessionInfo:
        """Return the state of the session."""
        answer = await self._shared.call("session_get", {"session_id": self.id})
        return msgspec.convert(answer, SessionInfo, strict=False)

    async def diff(
        self,
        *,
        turn: int | None = None,
        from_turn: int | str | None = None,
        to_turn: int | str | None = None,
        paths: Sequence[str] = (),
        ignored: bool = False,
        patch: bool = True,
        max_bytes: int = MAX_PATCH,
    ) -> Diff:
        """Return what has changed in the workspace, from before the first turn if no turn is given.

        Args:
            turn: Only the changes of this turn.
            from_turn: State before the changes: the end of a turn, or the name of a snapshot.
            to_turn: State after them, given likewise; None: the newest snapshot.
            paths: Only these files and folders of the workspace; empty: all.
            ignored: Whether to return changes of files that `.gitignore` names, too.
            patch: Whether the text of the patch is wanted.
            max_bytes: Maximum characters of that text.

        Raises:
            Conflict: the server takes no snapshots (`snapshots.mode`).
            NotFound: there is no such snapshot.
            LimitExceeded: the text is larger than `max_bytes`.
        """
        arguments = {
            "session_id": self.id,
            "turn": turn,
            "from_turn": from_turn,
            "to_turn": to_turn,
            "paths": list(paths) or None,
            "ignored": ignored,
        }
        return await read_diff(self._shared, arguments, patch=patch, max_bytes=max_bytes)

    async def export(
        self,
        file: str | os.PathLike[str],
        *,
        bundle: bool = False,
        turn: int | None = None,
        from_turn: int | str | None = None,
        to_turn: int | str | None = None,
        paths: Sequence[str] = (),
        ignored: bool = False,
    ) -> ExportInfo:
        """Write what has changed as a patch for `git apply`, or the snapshots as a bundle.

        Args:
            file: Path of a new file of this program.
            bundle: Whether to write all snapshots of the session, for `git fetch`, and no patch.
            turn: Of a patch, as for `diff`.
            from_turn: Of a patch, as for `diff`.
            to_turn: Of a patch, as for `diff`.
            paths: Of a patch, as for `diff`.
            ignored: Of a patch, as for `diff`.

        Raises:
            FileExistsError: there is a file of this name.
            Conflict: the server takes no snapshots (`snapshots.mode`).
            NotFound: there is no such snapshot.
        """
        arguments = {
            "session_id": self.id,
            "format": "bundle" if bundle else "patch",
            "turn": turn,
            "from_turn": from_turn,
            "to_turn": to_turn,
            "paths": list(paths) or None,
            "ignored": ignored,
        }
        return await write_export(self._shared, arguments, Path(file))

    async def log(self) -> list[TurnLog]:
        """Return the turns of the session, oldest first, with their changes and snapshots.

        Raises:
            Conflict: the server takes no snapshots (`snapshots.mode`).
        """
        return await read_log(self._shared, self.id)

    async def checkpoint(self, name: str | None = None) -> CheckpointInfo:
        """Take a snapshot of the workspace now, also while a turn runs.

        Args:
            name: Name that the session has not used yet; None: the time.

        Raises:
            Conflict: the server takes no snapshots (`snapshots.mode`).
            AlreadyExists: the session has a checkpoint of this name.
        """
        arguments = {"session_id": self.id, "name": name}
        answer = await self._shared.call("checkpoint", arguments, timeout=CALL_SECONDS)
        return msgspec.convert(answer, CheckpointInfo)

    async def restore(
        self,
        turn: int | str | None = None,
        *,
        checkpoint: str | None = None,
        discard: str | None = None,
    ) -> RestoreInfo:
        """Make the workspace equal to a snapshot; what is there is stored before.

        Args:
            turn: The end of this turn, or the name of a snapshot in `log`.
            checkpoint: Name that was given to `checkpoint`, instead of a turn.
            discard: Consent to the loss of files that no snapshot has, as a refusal names it.

        Raises:
            Conflict: a turn runs in the workspace, files would be lost, or the server takes no
                snapshots (`snapshots.mode`).
            NotFound: there is no such snapshot.
        """
        arguments = {
            "session_id": self.id,
            "turn": turn,
            "checkpoint": checkpoint,
            "discard": discard,
        }
        answer = await self._shared.call("session_restore", arguments, timeout=CALL_SECONDS)
        return msgspec.convert(answer, RestoreInfo)

    async def fork(
        self,
        prompt: str,
        *,
        at_turn: int | str | None = None,
        count: int = 1,
        large_files: bool = False,
        agent: str | None = None,
        model: str | None = None,
        autonomy: str | None = None,
        idempotency_key: str | None = None,
    ) -> list[Session | OublietteError]:
        """Start sessions with the files and the conversation of this one at a turn.

        Each has a workspace of its own, and starts or fails alone.

        Args:
            prompt: First message to each of the new agents.
            at_turn: The end of this turn, or the name of a snapshot in `log`; None: the newest,
                while a turn runs that before it.
            count: Number of sessions.
            large_files: Whether files above `snapshots.max_file_bytes` are copied too, as far as
                the workspace of this session still has them as they were.
            agent: Name of the agent; None: that of this session.
            model: Model of the agent; None: that of this session.
            autonomy: Actions that need no permission; None: as in this session.
            idempotency_key: Name of this request; a repeated one returns the same sessions.

        Returns:
            For each the session, with `fork_info`, or the error for which it was not started.

        Raises:
            Conflict: the server takes no snapshots (`snapshots.mode`).
            NotFound: there is no such snapshot, or no turn has ended.
        """
        arguments = {
            "session_id": self.id,
            "prompt": prompt,
            "at_turn": at_turn,
            "count": count,
            "large_files": large_files,
            "agent": agent,
            "model": model,
            "autonomy": autonomy,
            "idempotency_key": idempotency_key,
        }
        self._shared.check()
        entries = await call_fork(self._shared, arguments)
        return [
            self._forked(each) if each["error"] is None else from_wire(each["error"])
            for each in entries
        ]

    def _forked(self, entry: Mapping[str, Any]) -> Session:
        session = Session(self._shared, entry)
        session.began({**entry, "turn": 1}, lends=False)
        session.fork_info = msgspec.convert(entry, ForkInfo)
        return session

    async def merge(
        self,
        into: str,
        *,
        strategy: str = "merge",
        commits: str = "turns",
        turn: int | str | None = None,
        message: str | None = None,
        dry_run: bool = False,
        resolve: str | None = None,
    ) -> MergeInfo:
        """Merge what has changed in the workspace into a branch of the project's repository.

        No checkout is touched, and nothing is pushed. Conflicts are part of the outcome; the branch
        is as it was then.

        Args:
            into: Name of the branch; one that does not exist is made.
            strategy: `merge`; `squash`, one commit; `rebase`, one per turn on top of the branch.
            commits: `turns`, one per turn; `agent`, those that the agent has made, as they are, and
                one for what it has not committed.
            turn: As of the end of a turn, or a snapshot in `log`; None: the newest.
            message: Message of the merge or of the one commit; not for `rebase`.
            dry_run: Whether only the outcome is wanted, and nothing is to change.
            resolve: `agent`: another session resolves conflicts; merge that one when it is done.

        Raises:
            Conflict: the project was not cloned, the server takes no snapshots (`snapshots.mode`),
                or the branch got other commits meanwhile.
            NotFound: there is no such snapshot.
        """
        arguments = {
            "session_id": self.id,
            "into": into,
            "strategy": strategy,
            "turn": turn,
            "message": message,
            "dry_run": dry_run or None,
            "resolve": resolve,
            "commits": commits if commits != "turns" else None,
        }
        answer = await self._shared.call("session_merge", arguments, timeout=MERGE_SECONDS)
        return msgspec.convert(answer, MergeInfo)

    async def push(self, branch: str, *, to: str | None = None) -> PushInfo:
        """Push a branch of the project's repository to where the project was cloned from.

        A branch that does not exist is made first, as by `merge`. Commits there that the branch
        lacks are never replaced.

        Args:
            branch: Name of the branch.
            to: Its name there; None: the same.

        Raises:
            Forbidden: the project does not consent to pushes.
            RuntimeFailure: git failed; the sentence has the cause and a remedy.
            Conflict: the project was not cloned, or the session has changed nothing.
        """
        arguments = {"session_id": self.id, "branch": branch, "to": to}
        answer = await self._shared.call("session_push", arguments, timeout=PUSH_SECONDS)
        return msgspec.convert(answer, PushInfo)

    async def open_port(self, port: int) -> BrowserPort:
        """Open a port of the session's container for browsers of its owner.

        A port that is open already stays so, and gets another link.

        Args:
            port: Number on which a program in the container listens, on its loopback interface.

        Raises:
            Conflict: the session has ended.
            LimitExceeded: the session has too many open ports (`ports.max_per_session`).
            Unavailable: the server serves nothing over HTTP.
        """
        arguments = {"session_id": self.id, "port": port}
        answer = await self._shared.call("port_open", arguments, timeout=OPEN_SECONDS)
        return BrowserPort(self._shared, answer)

    async def subscribe(
        self, subscriber: Subscriber, *, after: int | None = -1, name: str | None = None
    ) -> Subscription:
        """Send the events of this session to an actor of the program, in process only.

        See `Oubliette.subscribe`.
        """
        return await subscribe(self._shared, subscriber, session_id=self.id, after=after, name=name)


async def end_session(shared: ClientContext, session_id: str, *, tree: bool) -> None:
    """End a session, and with `tree` its descendants; forget what was provided to it."""
    try:
        # Not by `shared.call`, which refuses and ends calls when the block ends.
        await shared.connection.call(
            "session_end", {"session_id": session_id, "tree": tree or None}, timeout=END_SECONDS
        )
    except NotFound:
        _forget(shared, session_id)
        raise
    _forget(shared, session_id)


def _forget(shared: ClientContext, session_id: str) -> None:
    shared.started.pop(session_id, None)
    shared.loops.forget(session_id)
