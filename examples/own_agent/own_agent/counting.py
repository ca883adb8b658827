"""Counting of words, apart from the agent, so that it can be tested without one."""

from pathlib import Path


def count(path: Path) -> int:
    """Return the number of words in a file."""
    return len(path.read_text(encoding="utf-8").split())
