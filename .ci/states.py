"""Writes docs/states.md: what states there are in a session, from the tables of the code.

python .ci/states.py
"""
# ruff: noqa: INP001 -- a program, not a package

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from oubliette.actors.agent_requests import caller_tools
from oubliette.actors.container import lifecycle as container
from oubliette.actors.session import lifecycle as session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "states.md"
HEAD = """\
# States

The states of a session, a turn, a caller's request and a container, and what leads from one to
another. What a drawing does not have is refused when it happens; of a request it is ignored, since
two outcomes may be under way at once. This page is generated from the tables in the code:
`python .ci/states.py` renews it. What the words mean is written beside each table.
"""


class Machine(NamedTuple):
    """One state machine of the code."""

    title: str
    module: ModuleType
    table: Mapping[tuple[Any, Any], Any]
    """What happens in which state, and the state that follows."""
    first: tuple[str, ...]
    last: tuple[str, ...] = ()


MACHINES = (
    Machine("A session", session, session.SESSION_STEPS, ("created",)),
    Machine("A turn", session, session.TURN_STEPS, ("queued",), ("done",)),
    Machine(
        "A caller's request",
        caller_tools,
        caller_tools.CALL_STEPS,
        ("reserving", "open"),  # open at once: one that an earlier actor left
        ("over",),
    ),
    Machine("A container", container, container.TRANSITIONS, ("down",)),
)


def page() -> str:
    """Return the text of the page."""
    return "\n".join([HEAD, *(line for each in MACHINES for line in section(each))])


def section(machine: Machine) -> Iterator[str]:
    """Return the lines of one drawing, in the order of the table."""
    place = Path(inspect.getfile(machine.module)).relative_to(ROOT)
    yield from (f"## {machine.title}", "", f"The table is in [`{place}`](../{place}).", "")
    yield from ("```mermaid", "stateDiagram-v2")
    yield from (f"    [*] --> {state}" for state in machine.first)
    arrows: dict[tuple[str, str], list[str]] = {}
    for (before, step), after in machine.table.items():
        arrows.setdefault((before, after), []).append(step)
    for (before, after), steps in arrows.items():
        yield f"    {before} --> {after}: {', '.join(steps)}"
    yield from (f"    {state} --> [*]" for state in machine.last)
    yield from ("```", "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: {len(PAGE.read_text().splitlines())} lines\n")
