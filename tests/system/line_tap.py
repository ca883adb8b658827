"""Runs a program, and keeps the lines that pass on its stdin and stdout.

python line_tap.py KEPT PROGRAM ARGUMENTS...
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

KEPT, *PROGRAM = sys.argv[1:]
LOG = os.open(KEPT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def pass_on(source: int, target: int, mark: bytes) -> None:
    """Write each line to the log, then to `target`, which is closed at the end."""
    with open(source, "rb") as lines, open(target, "wb", buffering=0) as out:
        for line in lines:
            os.write(LOG, mark + line)
            out.write(line)


inner_in, to_program = os.pipe()
from_program, inner_out = os.pipe()
program = subprocess.Popen(PROGRAM, stdin=inner_in, stdout=inner_out)
os.close(inner_in)
os.close(inner_out)
threading.Thread(target=pass_on, args=(0, to_program, b"> "), daemon=True).start()
pass_on(from_program, 1, b"< ")
sys.exit(program.wait())
