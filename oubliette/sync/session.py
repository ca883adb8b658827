"""Session, a conversation with one agent in a container; its calls block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.api.session import MAX_PATCH
from oubliette.api.tools.objects import listed_tools
from oubliette.errors import OublietteError
from oubliette.sync.browser_port import BrowserPort
from oubliette.sync.events import Events
from oubliette.sync.turn import Turn
from oubliette.sync.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from oubliette.api import session as twins
    from oubliette.api.callers.caller_loops import OnPermission
    from oubliette.api.changes import CheckpointInfo, Diff, ExportInfo, RestoreInfo, TurnLog
    from oubliette.api.forks import ForkInfo
    from oubliette.api.merging import MergeInfo, PushInfo
    from oubliette.api.views import SessionInfo
    from oubliette.sync.portal_thread import PortalThread


class Session:
    """A session: send it messages, follow its events, interrupt and end it.

    Made by `Project.spawn` and `Oubliette.session`.
    """

    def __init__(self, thread: PortalThread, twin: twins.Session) -> None:
        self._thread = thread
        self._twin = twin
        self.id: str = twin.id
        """Id of the session."""
        self.project_id: str = twin.project_id
        """Id of its project."""
        self.workspace_id: str = twin.workspace_id
        """Id of its workspace, which is /workspace/workspaces/<id> in the container."""

    def __repr__(self) -> str:
        return repr(self._twin)

    @property
    def fork_info(self) -> ForkInfo | None:
        """Its beginning, if `fork` has started it."""
        return self._twin.fork_info

    @property
    def warnings(self) -> tuple[str, ...]:
        """Parts of the last message without effect."""
        return self._twin.warnings

    @property
    def turn(self) -> Turn | None:
        """The last turn: of this object, or when it was found; None if there was none."""
        twin = self._twin.turn
        return None if twin is None else Turn(self._thread, twin)

    def events(self, *, after: int = -1, follow: bool = False) -> Events:
        """Return an iterator over the events of the session, in the order of its log.

        It ends when no turn runs or waits. It may be left at any moment; `cursor` of the iterator
        is the place to continue from.

        Args:
            after: Index of the last event that is known; -1: from the beginning.
            follow: Whether to wait for further turns, until the session has finished.
        """
        twin = self._thread.read(lambda: self._twin.events(after=after, follow=follow))
        return Events(self._thread, twin)

    def send(
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
            The turn, to be waited for or iterated.

        Raises:
            Conflict: the session was ended.
            BadTool: a tool cannot be offered.
        """
        given = None if tools is None else listed_tools(tools)
        twin = self._thread.call(
            lambda: self._twin.send(
                message,
                tools=given,
                on_permission=on_permission,
                model=model,
                autonomy=autonomy,
                idempotency_key=idempotency_key,
            )
        )
        return Turn(self._thread, twin)

    @property
    def workspace(self) -> WorkspaceFiles:
        """The files of its workspace, also while its agent works on them."""
        return WorkspaceFiles(self._thread, self._twin.workspace)

    def interrupt(self) -> None:
        """Interrupt the running turn; the session takes further messages. No turn is no error."""
        self._thread.call(self._twin.interrupt)

    def end(self, *, tree: bool = False) -> None:
        """End the session: its agent is stopped within 5 s, and no message resumes it.

        Args:
            tree: Whether its descendants are ended too.
        """
        self._thread.call(lambda: self._twin.end(tree=tree))

    def get(self) -> SessionInfo:
        """Return the state of the session."""
        return self._thread.call(self._twin.get)

    def diff(
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
        return self._thread.call(
            lambda: self._twin.diff(
                turn=turn,
                from_turn=from_turn,
                to_turn=to_turn,
                paths=paths,
                ignored=ignored,
                patch=patch,
                max_bytes=max_bytes,
            )
        )

    def export(
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
        return self._thread.call(
            lambda: self._twin.export(
                file,
                bundle=bundle,
                turn=turn,
                from_turn=from_turn,
                to_turn=to_turn,
                paths=paths,
                ignored=ignored,
            )
        )

    def log(self) -> list[TurnLog]:
        """Return the turns of the session, oldest first, with their changes and snapshots.

        Raises:
            Conflict: the server takes no snapshots (`snapshots.mode`).
        """
        return self._thread.call(self._twin.log)

    def checkpoint(self, name: str | None = None) -> CheckpointInfo:
        """Take a snapshot of the workspace now, also while a turn runs.

        Args:
            name: Name that the session has not used yet; None: the time.

        Raises:
            Conflict: the server takes no snapshots (`snapshots.mode`).
            AlreadyExists: the session has a checkpoint of this name.
        """
        return self._thread.call(lambda: self._twin.checkpoint(name))

    def restore(
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
        return self._thread.call(
            lambda: self._twin.restore(turn, checkpoint=checkpoint, discard=discard)
        )

    def fork(
        self,
        prompt: str,
        *,
        at_turn: int | str | None = None,
        count: int = 1,
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
        made = self._thread.call(
            lambda: self._twin.fork(
                prompt,
                at_turn=at_turn,
                count=count,
                agent=agent,
                model=model,
                autonomy=autonomy,
                idempotency_key=idempotency_key,
            )
        )
        return [
            each if isinstance(each, OublietteError) else Session(self._thread, each)
            for each in made
        ]

    def merge(
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
        return self._thread.call(
            lambda: self._twin.merge(
                into,
                strategy=strategy,
                commits=commits,
                turn=turn,
                message=message,
                dry_run=dry_run,
                resolve=resolve,
            )
        )

    def push(self, branch: str, *, to: str | None = None) -> PushInfo:
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
        return self._thread.call(lambda: self._twin.push(branch, to=to))

    def open_port(self, port: int) -> BrowserPort:
        """Open a port of the session's container for browsers of its owner.

        A port that is open already stays so, and gets another link.

        Args:
            port: Number on which a program in the container listens, on its loopback interface.

        Raises:
            Conflict: the session has ended.
            LimitExceeded: the session has too many open ports (`ports.max_per_session`).
            Unavailable: the server serves nothing over HTTP.
        """
        return BrowserPort(self._thread, self._thread.call(lambda: self._twin.open_port(port)))
