"""Progress of a long call: a bar on a terminal, lines in a pipe, nothing for programs."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from oubliette.cli.terminal.output import clean, coloured, is_json, note

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


@contextmanager
def shown(what: str) -> Generator[Callable[[str], None]]:
    """Yield a function that shows progress on stderr, until the block ends.

    Args:
        what: name of the operation.
    """
    if is_json():
        yield lambda _: None
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _bar(what) as report:
            yield report
    else:
        yield lambda line: note(f"{what}: {line}")


@contextmanager
def _bar(what: str) -> Generator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from oubliette.runtime.containers.docker.image_progress import share_of

    words = TextColumn("{task.description}", markup=False)
    rest = TextColumn("{task.fields[line]}", markup=False)
    console = Console(stderr=True, no_color=not coloured(sys.stderr))
    with Progress(
        words, BarColumn(), TimeElapsedColumn(), rest, console=console, transient=True
    ) as bar:
        task = bar.add_task(clean(what), total=None, line="")

        def report(line: str) -> None:
            share = share_of(line)
            if share is not None:
                bar.update(task, total=1.0, completed=share)
            bar.update(task, line=clean(line)[:80], refresh=True)

        yield report
