"""The command `oubliette`, and `python -m oubliette`."""

from __future__ import annotations

import sys
from typing import NoReturn

from oubliette.cli.terminal import stop_signals


def main() -> NoReturn:
    """Run the command line; from here on a signal can stop a server."""
    if sys.argv[1:2] == ["serve"]:
        stop_signals.guard()
    stop_signals.reset()
    from oubliette.cli.main import run

    run()


if __name__ == "__main__":
    main()
