"""Log events are constant phrases; what varies is in their fields."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.product_files import product_files
from tests.syntax import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
PHRASE = re.compile(r"[A-Za-z][\w.]*(?:'s)?(?:[,;:]? [\w.]+(?:'s)?)*")
"""Words with blanks between them."""
LONGEST = 70  # characters


def loggers(tree: ast.Module) -> set[str]:
    """The names to which a module assigns a logger of structlog."""
    return {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and "structlog.get_logger(" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def events(source: str) -> Iterator[tuple[int, str | None]]:
    """The line and the event of each call of a logger; None: it is no constant."""
    tree = parse(source)
    names = loggers(tree)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in METHODS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in names
        ):
            event = node.args[0] if len(node.args) == 1 else None
            constant = isinstance(event, ast.Constant) and isinstance(event.value, str)
            yield node.lineno, event.value if constant else None


def is_phrase(event: str | None) -> bool:
    return (
        event is not None
        and len(event) <= LONGEST
        and "_" not in event
        and PHRASE.fullmatch(event) is not None
        and not event.endswith(".")
    )


def test_every_log_event_of_the_package_is_a_constant_phrase():
    found = [
        (path.relative_to(ROOT).as_posix(), line, event)
        for path in product_files()
        for line, event in events(path.read_text(encoding="utf-8"))
    ]
    assert len(found) > 50
    assert [each for each in found if not is_phrase(each[2])] == []


@pytest.mark.parametrize(
    ("call", "accepted"),
    [
        ('log.info("session link failed", session_id=1)', True),
        ('log.info("a project\'s config.json cannot be used")', True),
        ('log.info("SIGHUP ignored")', True),
        ('log.info("session_link_failed")', False),
        ('log.info("session link failed.")', False),
        ('log.info(f"session {1} failed")', False),
        ('log.info("session %s failed", 1)', False),
        ("log.info(text)", False),
    ],
)
def test_an_event_with_variables_or_underscores_is_found(call: str, accepted: bool):  # noqa: FBT001
    source = f"import structlog\nlog = structlog.get_logger()\n{call}\n"
    assert [is_phrase(event) for _, event in events(source)] == [accepted]
