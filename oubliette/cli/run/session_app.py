"""A session in the whole terminal: its transcript, its questions, and a line for messages."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.widgets import Input, RichLog, Static

from oubliette.api.events.cursors import TreeCursor, page_of
from oubliette.cli.client.following import AGAIN_SECONDS, CALL_SECONDS, WAIT
from oubliette.cli.terminal.choices import AT_REST
from oubliette.cli.terminal.screen import bottom, drawn, name_of
from oubliette.cli.terminal.transcript import Transcript
from oubliette.contract.events import PermissionRequest, PermissionSettled
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.app import ComposeResult
    from textual.events import Resize

    from oubliette import Event, Oubliette, Session

ANSWERS: Final = {
    "y": ("allow", "once"),
    "s": ("allow", "session"),
    "n": ("deny", "once"),
}
"""Decision, and how long it holds, by what the user types."""
_HELP: Final = "Message to the agent. Ctrl-] leaves, Ctrl-C twice interrupts the turn."
_ASKED: Final = "y: allow once. s: allow for the session. n: deny. Or a message."

MOST: Final = 10_000
"""Entries of a transcript, and lines, that are kept."""
HISTORY: Final = 1000
"""Events before the present that are shown."""


async def shown_from(ob: Oubliette, session_id: str) -> int:
    """Return the `seq` after which a transcript begins: few events are before the present."""
    last = (await ob.call("session_get", session_id=session_id))["last_index"]
    if last <= HISTORY:
        return -1
    asked = ob.call(
        "session_events", session_id=session_id, since_index=last - HISTORY, max_events=1
    )
    events = page_of(await asked).events
    return events[0].seq - 1 if events else -1


class TranscriptLog(RichLog):
    """Transcript that is wrapped to the width of the window, again when that changes."""

    def __init__(self) -> None:
        super().__init__(
            wrap=True,
            markup=False,
            highlight=False,
            max_lines=MOST,
            min_width=1,
            auto_scroll=False,
        )
        self._entries: deque[RenderableType] = deque(maxlen=MOST)
        self._width = 0

    def add(self, entry: RenderableType) -> None:
        """Write an entry below the others."""
        self._entries.append(entry)
        self.write(entry, expand=True)

    def on_mount(self) -> None:
        """Stay at the end as the text grows, until the user scrolls."""
        self.anchor()

    def on_resize(self, event: Resize) -> None:
        """Wrap all entries again, and show the same part of them."""
        width, self._width = self._width, event.size.width
        if width in {0, self._width}:
            return
        place = self.scroll_y / max(1, self.max_scroll_y)
        at_end = self.is_vertical_scroll_end
        self.clear()
        for entry in self._entries:
            self.write(entry, expand=True)
        if not at_end:
            self.scroll_to(y=place * self.max_scroll_y, animate=False)


class SessionApp(App[None]):
    """The session and those below it, with their last events; it ends when the user leaves.

    Args:
        ob: Connected as who may converse with it.
        session: The session.
        after: `seq` of the event after which the transcript begins.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    TranscriptLog { height: 1fr; background: $background; scrollbar-size-vertical: 1; }
    #doing { height: auto; max-height: 14; }
    Input { border: none; border-top: solid $secondary; height: 2; padding: 0; }
    """
    BINDINGS: ClassVar = [
        Binding("ctrl+right_square_bracket", "quit", "Leave", priority=True),
        Binding("ctrl+c", "interrupt", "Interrupt", priority=True),
    ]

    def __init__(self, ob: Oubliette, session: Session, after: int) -> None:
        super().__init__()
        self._ob = ob
        self._session = session
        self._cursor = TreeCursor(after)
        self._events = Transcript()
        self._named = session.id
        """Session of the last passage, which is named where another one goes on."""
        self._open: dict[str, PermissionRequest] = {}
        """Requests that are not decided, in the order in which they came."""
        self._interrupts_until = 0.0
        self._reading = False

    def compose(self) -> ComposeResult:
        """Yield the transcript, the line of what the session does, and that of messages."""
        yield TranscriptLog()
        yield Static(id="doing")
        yield Input(placeholder=_HELP)

    def on_mount(self) -> None:
        """Begin to read, and to count the seconds of what the session does."""
        self.query_one(TranscriptLog).can_focus = False
        self.query_one(Input).focus()
        self.set_interval(0.25, self._draw)
        self._go_on()

    def _go_on(self) -> None:
        """Read events, unless that is done already: it ends with the session, which may resume."""
        if not self._reading:
            self._reading = True
            self.run_worker(self._read(), name="events of the session")

    async def _read(self) -> None:
        try:
            finished = False
            while not finished:
                page = page_of(
                    await self._ob.call(
                        "session_events",
                        session_id=self._session.id,
                        since_index=self._cursor.after,
                        include_children=True,
                        wait_seconds=WAIT,
                        timeout=CALL_SECONDS,
                    )
                )
                for event in self._cursor.take(page):
                    self._show(event)
                finished = page.status in AT_REST and not page.more
        except OublietteError as error:
            self._say(f"error: {error.message}", "red")
        finally:
            self._reading = False

    def _show(self, event: Event) -> None:
        match event:
            case PermissionRequest(request_id=request_id):
                self._open[request_id] = event
            case PermissionSettled(request_id=request_id):
                self._open.pop(request_id, None)
            case _:
                pass
        log = self.query_one(TranscriptLog)
        for passage in self._events.passages(event):
            if passage.session_id != self._named:
                self._named = passage.session_id
                log.add(name_of(passage))
            log.add(drawn(passage))
        self.query_one(Input).placeholder = _ASKED if self._open else _HELP
        self._draw()

    def _draw(self) -> None:
        """Show what the session does, and the text that it is writing."""
        self.query_one("#doing", Static).update(bottom(self._events, self.size.width))

    def _say(self, text: str, style: str) -> None:
        self.query_one(TranscriptLog).add(Text(text, style=style))

    async def on_input_submitted(self, given: Input.Submitted) -> None:
        """Answer the oldest question, or send a message."""
        text = given.value.strip()
        given.input.clear()
        if text:
            self.run_worker(self._pass_on(text), name="message to the session")

    async def _pass_on(self, text: str) -> None:
        asked = next(iter(self._open.values()), None)
        try:
            if asked is not None and text.casefold() in ANSWERS:
                await self._ob.call("permission_response", **_answer(asked, text.casefold()))
            else:
                await self._session.send(text)
                self._go_on()
        except OublietteError as error:
            hint = f" ({error.hint})" if error.hint else ""
            self._say(f"error: {error.message}{hint}", "red")

    def action_interrupt(self) -> None:
        """Interrupt the turn, if the key is pressed twice."""
        if time.monotonic() > self._interrupts_until:
            self._interrupts_until = time.monotonic() + AGAIN_SECONDS
            self._say(
                f"Ctrl-C within {AGAIN_SECONDS:g} s interrupts the turn; Ctrl-] leaves.", "dim"
            )
            return
        self._interrupts_until = 0.0
        self.run_worker(self._interrupt(), name="interrupt of the turn")

    async def _interrupt(self) -> None:
        try:
            await self._session.interrupt()
        except OublietteError as error:
            self._say(f"error: {error.message}", "red")


def _answer(asked: PermissionRequest, typed: str) -> dict[str, Any]:
    decision, remember = ANSWERS[typed]
    return {
        "session_id": asked.session_id,
        "request_id": asked.request_id,
        "decision": decision,
        "remember": remember,
    }
