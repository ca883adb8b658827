"""The page of events names every type and every kind that the code has, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import oubliette
from oubliette.contract.events import EventType
from oubliette.runtime.agents.base import EventKind
from tests.syntax import parse

ROOT = Path(oubliette.__file__).parent
PAGE = (ROOT.parent / "docs" / "events.md").read_text(encoding="utf-8")
TYPES = set(get_args(EventType))
SOURCES = [
    *(ROOT / "actors" / "session").glob("*.py"),
    *(ROOT / "actors" / "agent_requests").glob("*.py"),
    *(ROOT / "actors" / "ports").glob("*.py"),
    *(ROOT / "actors" / "project").glob("*.py"),
    *(ROOT / "runtime" / "agents").rglob("*.py"),
]


def told_kinds() -> set[str]:
    """Constants that the code tells as a `kind`: in a dictionary, or by `system(kind, …)` or `_note`."""
    found: set[str] = set()
    for path in SOURCES:
        tree = parse(path.read_text(encoding="utf-8"))
        names = {
            target.id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign)
            and isinstance(target := node.target, ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                said = [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == "kind"]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                said = node.args[:1] if node.func.id == "system" else []
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                said = node.args[1:2] if node.func.attr == "_note" else []
            else:
                continue
            for value in said:
                constant = value.value if isinstance(value, ast.Constant) else None
                if isinstance(value, ast.Name):
                    constant = names.get(value.id)
                if isinstance(constant, str):
                    found.add(constant)
    return found


def described_types() -> set[str]:
    return set(re.findall(r"^### `(\w+)`$", PAGE, re.M))


def described_kinds() -> set[str]:
    kinds = PAGE.partition("## Kinds of `system`")[2]
    rows = re.findall(r"^\| ((?:`[\w.]+`(?:, )?)+) \|", kinds, re.M)
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}


def test_every_type_is_described_and_no_other() -> None:
    assert described_types() == TYPES


def test_every_kind_of_the_code_is_described_and_no_other() -> None:
    in_system = set(get_args(EventKind)) - TYPES  # told as `system`, with this kind
    errors = {"not_run"}  # kinds of `error`, described there
    assert in_system == {"ready", "turn_started", "usage"}
    told = told_kinds()
    told -= {"replaced"}  # of a refusal on the link, which is no event
    assert {"stage", "limit", "retry", "not_resumed"} <= told
    assert described_kinds() == (told - errors) | in_system
    error = PAGE.partition("### `error`")[2].partition("###")[0]
    assert all(f"`{kind}`" in error for kind in errors | {"limit"})
