"""A program that is killed in tests: it makes one refund for each order."""

from __future__ import annotations

import os
from pathlib import Path

from oubliette.failpoints import failpoint

BOOK = Path(os.environ["OUBLIETTE_HOME"]) / "refunds"


def main() -> None:
    done = BOOK.read_text().split() if BOOK.exists() else []
    for order in ("A-17", "A-18", "A-19"):
        if order in done:
            continue
        failpoint("shop.before_refund")
        with BOOK.open("a") as book:
            book.write(f"{order}\n")
        print("refunded", order)


if __name__ == "__main__":
    main()
