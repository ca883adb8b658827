"""Following a session at a terminal, from a message to the end of the turns that it has caused."""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import typer

from oubliette.cli.client.calls import call
from oubliette.cli.terminal.choices import AT_REST
from oubliette.cli.terminal.output import Format, home_option, note, paged
from oubliette.cli.terminal.screen import shown, to_person

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT: Final = 30.0
"""Seconds of one long poll."""
CALL_SECONDS: Final = WAIT + 30.0
AGAIN_SECONDS: Final = 2.0
"""Time after a Ctrl-C within which another one interrupts the turn."""
INTERRUPTS: Final = "Interrupting the turn. Ctrl-C again leaves the session as it is."
LEAVES: Final = f"Detached; it runs on. Ctrl-C within {AGAIN_SECONDS:g} s interrupts the turn."
TIME_LIMITS: Final = frozenset({"max_turn_seconds", "max_wall_seconds"})


class ExitCode(IntEnum):
    """Exit code of a command that waits for a turn; errors have theirs in the tree of errors."""

    done = 0
    failed = 1
    limit = 6
    answer_needed = 9
    out_of_time = 124  # that of timeout(1)
    interrupted = 130


def exit_code(status: str, limit: str | None) -> ExitCode:
    """Return the exit code for the end of a turn.

    Args:
        status: That of its completion.
        limit: Name of the limit that was reached in it; None: there was none.
    """
    if status == "completed":
        return ExitCode.done
    if limit in TIME_LIMITS:
        return ExitCode.out_of_time
    return ExitCode.failed if limit is None else ExitCode.limit


def log(
    home: str | None,
    session_id: str,
    output: Format,
    *,
    follow: bool,
    after: int = -1,
    since: float | None = None,
    children: bool = False,
) -> None:
    """Show what is stored of a session; with `follow` until it has finished.

    Args:
        home: As given on the command line.
        session_id: Its id.
        output: Whether it is a transcript, or events as JSON lines.
        follow: Whether to wait for more.
        after: Index of the event after which it begins.
        since: Time of the first event, in seconds since 1970.
        children: Whether events of its whole tree are shown.
    """
    index, wait = after, 0.0
    with (
        nullcontext(sys.stdout) if follow else paged() as to,
        shown(output, to, live=follow) as show,
    ):
        while True:
            asked = {"session_id": session_id, "since_index": index, "wait_seconds": wait}
            page = call(
                home, "session_events", {**asked, "include_children": children}, CALL_SECONDS
            )
            if (first := page["truncated_before"]) is not None:
                note(f"older events were deleted; the first that is kept is {first}")
            for event in page["events"]:
                if since is None or event["ts"] >= since:
                    show(event)
            index = page["last_index"]
            wait = WAIT if follow else 0.0  # only a server has new events; stored ones need none
            if not page["more"] and (page["status"] in AT_REST or not follow):
                return


def follow(home: str | None, session_id: str, index: int, output: Format) -> None:
    """Show the events after `index` until the requested turns are over.

    A pipe gets the text of the last turn alone. Ctrl-C leaves the session running, another one soon
    after it interrupts the turn. Without a terminal it leaves a session that asks for permission.

    Raises:
        typer.Exit: with an `ExitCode`.
        KeyboardInterrupt: the user has left.
    """
    following = _Following(home, session_id, index)
    with shown(output, to_person()) as show:
        while True:
            try:
                code = following.to_the_end(show)
                break
            except KeyboardInterrupt:
                note(LEAVES)
                if not _again():
                    where = session_id + home_option(home)
                    note("Come back to it:")
                    note(f"  oubliette attach {where}")
                    note(f"  oubliette session interrupt {where}")
                    raise
                note(INTERRUPTS)
                call(home, "session_interrupt", {"session_id": session_id})
    if code is ExitCode.answer_needed:
        note_answer_needed(session_id, home)
    answers = output is Format.text and not sys.stdout.isatty()
    if answers and code is ExitCode.done and following.final_text:
        sys.stdout.write(following.final_text.rstrip("\n") + "\n")
    raise typer.Exit(code)


def note_answer_needed(session_id: str, home: str | None) -> None:
    """Note how to answer what a session asks, where that cannot be done here."""
    where = session_id + home_option(home)
    note("It waits for a permission, which cannot be given here: this is no terminal. It runs on:")
    note(f"  oubliette permit {where}")
    note(f"  oubliette attach {where}")


class _Following:
    """The session, as far as its events were seen.

    Args:
        home: As given on the command line.
        session_id: Its id.
        index: Of the last event that was seen.
    """

    def __init__(self, home: str | None, session_id: str, index: int) -> None:
        self._home = home
        self._session_id = session_id
        self._index = index
        self._status = "completed"
        self._limit: str | None = None
        self._asked: set[str] = set()
        """Requests for permission that are not decided."""
        self.final_text: str | None = None

    def to_the_end(self, show: Callable[[dict[str, Any]], None]) -> ExitCode:
        """Show events until the turns are over, or one needs an answer that has to come from here.

        Returns:
            The exit code for the last turn.
        """
        while True:
            asked = {
                "session_id": self._session_id,
                "since_index": self._index,
                "wait_seconds": WAIT,
            }
            page = call(self._home, "session_events", asked, CALL_SECONDS)
            for event in page["events"]:
                self._index = event["index"]
                self._note(event)
                show(event)
            self._index = page["last_index"]
            if page["completed"] and not page["more"]:
                code = exit_code(self._status, self._limit)
                return ExitCode.failed if page["failed"] and code is ExitCode.done else code
            if self._asked and not page["more"] and not sys.stdin.isatty():
                return ExitCode.answer_needed

    def _note(self, event: dict[str, Any]) -> None:
        match event:
            case {"type": "completion", "status": status}:
                self._status, self.final_text = status, event.get("final_text")
            case {"type": "status", "status": "running"}:
                self._limit = None  # a turn begins
            case {"type": "error", "kind": "limit", "limit": limit}:
                self._limit = limit
            case {"type": "permission_request", "request_id": asked}:
                self._asked.add(asked)
            case {"type": "permission_settled", "request_id": asked}:
                self._asked.discard(asked)
            case _:
                pass


def _again() -> bool:
    """Whether the user presses Ctrl-C again."""
    try:
        threading.Event().wait(AGAIN_SECONDS)
    except KeyboardInterrupt:
        return True
    return False
