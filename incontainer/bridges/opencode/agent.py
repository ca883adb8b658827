"""Replacement of this process by `opencode acp`, behind the guard."""

from __future__ import annotations

import errno
import os

from ...io.stdio import log
from .guard import Guarded

PROGRAM = "--program="


def program_of(arguments: list[str]) -> str | None:
    """Return the program to start; None after an unknown argument."""
    program = "opencode"
    for argument in arguments:
        if not argument.startswith(PROGRAM):
            log(f"unknown argument {argument}; there is {PROGRAM}PATH")
            return None
        program = argument[len(PROGRAM) :]
    return program


def not_started(program: str, error: OSError) -> int:
    """Print why the program was not started; return the exit code."""
    why = f"{program}: {error.strerror}"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        why += "; either use an image that has it, or set path in [opencode] to one to mount"
    log(why)
    return 127


def main(arguments: list[str]) -> int:
    """Replace this process by OpenCode; returns an exit code if that fails."""
    program = program_of(arguments)
    if program is None:
        return 2
    try:
        guarded = Guarded(os.environ, {})
        for note in guarded.notes:
            log(note)
        for fd in guarded.inherited:
            os.set_inheritable(fd, True)
        os.execvpe(program, [program, "acp"], guarded.environ)  # noqa: S606 -- no shell is meant
    except OSError as error:
        return not_started(program, error)
