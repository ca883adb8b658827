"""Screen on which a transcript is shown: a terminal with a status line, or lines in a pipe."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from oubliette.api.events.decoding import decode_event
from oubliette.cli.terminal.output import (
    SHORT,
    Format,
    clean,
    coloured,
    is_json,
    print_json,
)
from oubliette.cli.terminal.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import IO, Any

    from rich.console import RenderableType
    from rich.live import Live

    from oubliette.cli.terminal.transcript import Passage
    from oubliette.contract.events import Event

_STYLES: Final = {
    "prompt": "bold",
    "call": "bold",
    "result": "dim",
    "error": "red",
    "question": "yellow",
    "note": "dim",
    "end": "dim",
}
_TAIL: Final = 4000
"""Characters of a message that has not ended from which the last lines are shown."""
_TAIL_LINES: Final = 12
_INDENT: Final = 2


def to_person() -> IO[str]:
    """Return where a person reads: stderr if stdout, which a program has, is for the answer."""
    return sys.stdout if sys.stdout.isatty() and not is_json() else sys.stderr


@contextmanager
def shown(
    output: Format, stream: IO[str], *, named: bool = False, live: bool = True
) -> Generator[Callable[[dict[str, Any]], None]]:
    """Yield a function that shows an event, as a tool returns it: part of a transcript, or JSON.

    Args:
        output: Whether it is JSON, on stdout.
        stream: As for `Screen`, like the rest.
        named: As there.
        live: As there.
    """
    if output is Format.json:
        yield print_json
        return
    with Screen(stream, named=named, live=live) as screen:
        yield lambda event: screen.show(decode_event(event))


class Screen:
    """Shows events as a transcript; a context manager.

    On a terminal messages are streamed, and the last line shows what the session does, with the
    seconds since it began with that.

    Args:
        stream: Where to write.
        named: Whether the first session is named too, not only where another one goes on.
        live: Whether more is to come: what the session does is shown.
    """

    def __init__(self, stream: IO[str], *, named: bool = False, live: bool = True) -> None:
        self._stream = stream
        self._transcript = Transcript()
        self._speaker = "" if named else None
        self._waits = live
        self._live = self._on_terminal() if stream.isatty() else None

    def _on_terminal(self) -> Live:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._stream, highlight=False)
        # A stream that is no terminal, such as stderr in a file, is not drawn on.
        return Live(
            console=console,
            get_renderable=lambda: bottom(self._transcript, console.width),
            refresh_per_second=8,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )

    def __enter__(self) -> Self:
        if self._live is not None and self._waits:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Leave the terminal to who writes in the block, such as a question."""
        live = self._live
        if live is None or not live.is_started:
            yield
            return
        live.stop()
        try:
            yield
        finally:
            live.start()

    def show(self, event: Event) -> None:
        """Show what an event adds."""
        passages = self._transcript.passages(event)
        for passage in passages:
            self._name(passage)
            if self._live is not None:
                self._live.console.print(drawn(passage))
            else:
                self._write(passage)
        if self._live is None:
            self._stream.flush()
        elif passages and self._live.is_started:
            self._live.refresh()  # what it does now stands below what it has done

    def _write(self, passage: Passage) -> None:
        """Write it as it is to what is no terminal, in colours if they are wanted there too."""
        indent = " " * _INDENT * passage.level
        lines = [f"{indent}{line}".rstrip() for line in passage.text.splitlines()]
        style = _STYLES.get(passage.kind)
        if style is not None and coloured(self._stream):
            from rich.style import Style

            lines = [Style.parse(style).render(line) for line in lines]
        self._stream.writelines(line + "\n" for line in lines)

    def _name(self, passage: Passage) -> None:
        """Name the session of a passage where it is another one than that of the one before."""
        before, self._speaker = self._speaker, passage.session_id
        if before is None or before == passage.session_id:
            return
        if self._live is None:
            indent = " " * _INDENT * passage.level
            self._stream.write(f"{indent}── {clean(passage.session_id)}\n")
        else:
            self._live.console.print(name_of(passage))


def bottom(transcript: Transcript, width: int) -> RenderableType:
    """Return what stands below a transcript: the end of the message that comes, and a status line.

    Args:
        transcript: The transcript.
        width: Columns of the terminal.
    """
    from rich.console import Console, Group
    from rich.spinner import Spinner
    from rich.text import Text

    doing = clean(transcript.doing)
    if not doing:
        return Text("")
    seconds = time.monotonic() - transcript.since
    status = Text(f"{doing} · {seconds:.0f} s", no_wrap=True, overflow="ellipsis", style="dim")
    spinner = Spinner("dots", text=status)
    spinner.start_time = transcript.since
    text = clean(transcript.streamed[-_TAIL:])
    if not text:
        return spinner
    tail = Text(text).wrap(Console(), width)[-_TAIL_LINES:]
    return Group(Text("\n").join(tail), spinner)


def name_of(passage: Passage) -> RenderableType:
    """Return the line above the passages of a session where another one was before."""
    from rich.text import Text

    name = clean(passage.session_id)[-SHORT:]
    return Text(f"{' ' * _INDENT * passage.level}── {name}", style="cyan")


def drawn(passage: Passage) -> RenderableType:
    """Return a passage for a terminal: Markdown of a message, with its line breaks."""
    from rich.padding import Padding
    from rich.text import Text

    drawn: RenderableType
    if passage.kind == "message":
        from rich.markdown import Markdown

        drawn = Markdown(passage.text.replace("\n", "  \n"), hyperlinks=False)
    else:
        drawn = Text(passage.text, style=_STYLES[passage.kind])
    return Padding(drawn, (0, 0, 0, _INDENT * passage.level)) if passage.level else drawn
