"""A server that can be made to fail while it runs: `python -m oubliette.testing.faulty serve …`.

It is the ordinary program, with two seams that production code has no need of. Every message that
an actor is about to handle passes the failpoint `<Class>.<Message>`, so that an actor of any kind
can be failed at any message. And each line on stdin replaces the active failpoints (see
`oubliette.failpoints`); it is answered by `{"armed": line}` on stdout.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from oubliette import failpoints
from oubliette.kit import Actor

if TYPE_CHECKING:
    from collections.abc import Sequence


def seam() -> None:
    """Let every message pass a failpoint before it is handled."""
    handle: Any = vars(Actor)["_receive"]

    def faulty(self: Any, envelope: Any) -> Any:
        self.envelope = envelope  # who asked must get the error
        failpoints.failpoint(f"{type(self).__name__}.{type(envelope.message).__name__}")
        return handle(self, envelope)

    setattr(Actor, "_receive", faulty)  # noqa: B010 - on purpose: nothing else may know of it


def _arm() -> None:
    for line in sys.stdin:
        failpoints.activate(line.strip())
        os.write(1, json.dumps({"armed": line.strip()}).encode() + b"\n")


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the command line with the seams in place."""
    from oubliette.cli.main import run

    failpoints.activate(os.environ.get("OUBLIETTE_FAILPOINTS", ""))
    seam()
    threading.Thread(target=_arm, name="failpoints", daemon=True).start()
    run(list(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
