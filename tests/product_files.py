"""The product's modules, for the tests that look at all of them."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "oubliette"


def product_files(folder: Path = PACKAGE) -> list[Path]:
    """Each module below a folder once, those behind the link `incontainer` too.

    `rglob` passes over links, and a test that looks for what is wrong would be green.
    """
    linked = list((folder / "incontainer").rglob("*.py"))
    assert len(linked) >= 60 or folder != PACKAGE, "the modules of `incontainer` are not found"
    return sorted({*folder.rglob("*.py"), *linked})
