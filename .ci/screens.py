"""Draws the screens of `run`, `ps`, `top` and `attach` that docs/command-line.md shows.

python .ci/screens.py            renews docs/screens

The commands run on a terminal of 80, 100 and 160 columns, on a server of their own with the
scripted agent.
Ids and times differ each time, so nothing compares the pictures.
"""

# ruff: noqa: INP001 -- a program, not a package
from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "screens"
COLUMNS = (80, 100, 160)
ROWS = 24
SECONDS = 60.0
QUIET = 1.0
MORE = 2.0
"""Seconds after which a screen is as a person looks at it."""
TASK = (
    "say I look at the test first.\nexec grep -n total shop.py\nask edit shop.py\n"
    "exec sed -i 's/price - tax/price + tax/' shop.py\n"
    "say The total was a **difference**. It is a sum now:\nsay - `shop.py`, line 2\n"
    "usage 0.0123 4200"
)
CHILD = 'call session_message {"message": "say The small part\\nsleep 600"}'


class Terminal:
    """A command on a terminal.

    Args:
        words: Of the command.
        columns: Of the terminal.
        environ: Environment of the command.
        folder: Where it runs.
    """

    def __init__(
        self, words: tuple[str, ...], columns: int, environ: dict[str, str], folder: Path
    ) -> None:
        self._screen = pyte.Screen(columns, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._fd, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "oubliette", *words],
            stdin=theirs, stdout=theirs, stderr=theirs,
            env=environ, cwd=folder, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)

    def until(self, text: str) -> None:
        """Read until a text is seen, and for a moment more."""
        deadline = time.monotonic() + SECONDS
        while not any(text in line for line in self._screen.display):
            self._read(QUIET)
            if time.monotonic() > deadline:
                raise TimeoutError("\n".join([f"no {text!r} in:", *self._screen.display]))
        deadline = time.monotonic() + MORE
        while (left := deadline - time.monotonic()) > 0:
            self._read(left)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._fd], [], [], seconds)[0]:
            return False
        try:
            self._stream.feed(os.read(self._fd, 65536))
        except OSError:  # the command has ended
            return False
        return True

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def draw(self, name: str) -> None:
        """Write the screen as a picture."""
        console = Console(record=True, width=self._screen.columns, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
        lines = [self._line(row) for row in range(ROWS)]
        while lines and not lines[-1].plain.strip():
            lines.pop()
        for line in lines:
            console.print(line, no_wrap=True, overflow="crop", crop=True)
        svg = console.export_svg(title=f"oubliette {name}")
        # No font is fetched from elsewhere.
        svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}-{self._screen.columns}.svg").write_text(svg, encoding="utf-8")

    def _line(self, row: int) -> Text:
        chars = [self._screen.buffer[row][column] for column in range(self._screen.columns)]
        text = Text()
        for style, run in itertools.groupby(chars, key=_style):
            text.append("".join(char.data for char in run), style)
        return text

    def end(self) -> None:
        """End the command."""
        self._process.terminate()
        self._process.wait(SECONDS)
        os.close(self._fd)


def _style(char: pyte.screens.Char) -> Style:
    return Style(
        color=_colour(char.fg), bgcolor=_colour(char.bg),
        bold=char.bold, italic=char.italics, reverse=char.reverse,
    )  # fmt: skip


def _colour(name: str) -> str | None:
    if name == "default":
        return None
    named = name.replace("brown", "yellow").replace("bright", "bright_")
    return f"#{name}" if re.fullmatch(r"[0-9a-f]{6}", name) else named


@contextlib.contextmanager
def desk() -> Iterator[tuple[dict[str, str], Path]]:
    """Yield the environment of a home with a server, and a checkout."""
    base = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    base.chmod(0o711)
    shop = base / "shop"
    shop.mkdir()
    (shop / "shop.py").write_text("def total(price, tax):\n    return price - tax\n")
    environ = {
        **{name: text for name, text in os.environ.items() if "OUBLIETTE_" not in name},
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "OUBLIETTE_HOME": str(base / "home"),
        "OUBLIETTE_SERVER__PORT": "0",
        "OUBLIETTE_SERVER__ON_STOP": "end",
        "OUBLIETTE_CONTAINERS__RUNTIME": "process",
        "OUBLIETTE_AGENTS__DEFAULT": "scripted",
    }
    names = ["-c", "user.name=A User", "-c", "user.email=user@example.com"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], [*names, "commit", "-qm", "A shop"]):
        subprocess.run(["git", "-C", shop, *words], check=True)
    try:
        yield environ, shop
    finally:
        subprocess.run([sys.executable, "-m", "oubliette", "stop"], env=environ, check=False)
        shutil.rmtree(base, ignore_errors=True)


def main() -> None:
    """Draw all screens."""
    with desk() as (environ, shop):

        def shown(name: str, columns: int, *words: str, until: str) -> None:
            terminal = Terminal((name, *words), columns, environ, shop)
            terminal.until(until)
            terminal.draw(name)
            terminal.end()

        for columns in COLUMNS:
            task = ("run", TASK, "--agent", "scripted")
            terminal = Terminal(task, columns, environ, shop)
            terminal.until("[y/N]")
            terminal.type("y\n")
            terminal.until("take it")
            terminal.draw("run")
            terminal.end()
        asking = Terminal(("run", TASK, "--agent", "scripted"), 100, environ, shop)
        asking.until("[y/N]")
        parent = Terminal(("run", CHILD, "--agent", "scripted"), 100, environ, shop)
        parent.until("calls")
        listed = subprocess.run(
            [sys.executable, "-m", "oubliette", "permit"],
            env=environ, capture_output=True, text=True, check=True,
        )  # fmt: skip
        session = listed.stdout.splitlines()[1].split("\t")[0]
        for columns in COLUMNS:
            shown("ps", columns, until="say")
            shown("top", columns, until="Leave")
            shown("attach", columns, session, until="y: allow once")
        asking.end()
        parent.end()
    sys.stdout.write(f"{FOLDER.relative_to(ROOT)}: {len(list(FOLDER.iterdir()))} pictures\n")


if __name__ == "__main__":
    main()
