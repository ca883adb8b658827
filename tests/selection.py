"""What of the suite is run: its core (`make test`) or the whole (`make test-all`), and what is said.

`OUBLIETTE_SUITE=core`, which `make test` sets, leaves out what is marked `whole` or `slow`, and
what needs an engine or an agent, unless `OUBLIETTE_REQUIRE` demands it: that alone takes longer
than all the rest. Plain `pytest` leaves nothing out. `.ci/all` runs the whole in shares, one after
another: the core, what needs podman, docker or a real agent, and what else is `beyond` the core.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests import requirements

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

VARIABLE = "OUBLIETTE_SUITE"
PART = "OUBLIETTE_PART"
"""`2/3`: of the tests the second third, always the same ones."""
SERVED = "tests/system/"
"""Where each module has a server, which its tests share."""
ENGINES = {"apple-standin", "docker", "podman"}
SHARES = ("core", "beyond", "agents", "docker", "podman")
"""Values of `OUBLIETTE_SUITE`. A test that needs several is of the last of them, and one of the
stand-in is podman's."""
CLUSTER = {"postgres", "ray"}
EXPENSIVE = ENGINES | CLUSTER | requirements.AGENT_PROGRAMS.keys()
"""Requirements that the core uses only where they are demanded."""
KINDS = {
    "kind": {"sdk-auto", "sdk-legacy", "http-auto", "http-legacy"},
    "caller": {"http-auto", "http-legacy"},
    "ob": {"embedded", "connected", "blocking"},
}
"""Kinds of caller and of Python program, by parameter: the core has one of them per test."""
WHOLE = "whole"
WHOLE_EXAMPLES = 60
"""What a property has in the whole suite that names no number."""
OTHER = "other"
PHRASES = {WHOLE: "of the whole suite alone", OTHER: "cannot be run here"}


def share() -> str:
    """The share of the suite that alone is to be run; empty for all of it."""
    name = os.environ.get(VARIABLE, "")
    if name not in ("", *SHARES):
        raise pytest.UsageError(f"{VARIABLE} is one of {', '.join(SHARES)}, not {name!r}")
    return name


def needs(item: pytest.Item) -> list[str]:
    """The names of what the machine must have for the test."""
    return [str(name) for mark in item.iter_markers("requires") for name in mark.args]


def left_out(item: pytest.Item, demanded: set[str]) -> str | None:
    """For what the core leaves the test out; None if it has it."""
    undemanded = [name for name in needs(item) if name in EXPENSIVE - demanded]
    if undemanded:
        return undemanded[0]
    if item.get_closest_marker("whole") or item.get_closest_marker("slow"):
        return WHOLE
    return None


def choose(items: list[pytest.Item]) -> tuple[list[pytest.Item], Counter[str]]:
    """The tests of the share that is asked for, and how many the core leaves out for what."""
    name = share()
    if name == "core":
        why = _left_out_of_core(items, requirements.demanded())
        return [item for item in items if item not in why], Counter(why.values())
    if name:
        of_core = set(items) - _left_out_of_core(items, set()).keys()
        items = [item for item in items if item not in of_core and _beyond_core(item) == name]
    return items, Counter()


def _beyond_core(item: pytest.Item) -> str:
    """The share of a test that the core has not."""
    needed = set(needs(item))
    if needed & (ENGINES - {"docker"}):
        return "podman"
    if "docker" in needed:
        return "docker"
    return "agents" if needed & requirements.AGENT_PROGRAMS.keys() else "beyond"


def _left_out_of_core(items: list[pytest.Item], demanded: set[str]) -> dict[pytest.Item, str]:
    kinds: dict[str, list[str]] = {}
    for item in items:
        test, kind = kind_of(item)
        kinds.setdefault(test, []).append(kind)
    without: dict[pytest.Item, str] = {}
    for item in items:
        test, kind = kind_of(item)
        # One each, and not always the same: all of them together have every kind.
        in_turn = sorted(kinds[test])[zlib.crc32(test.encode()) % len(kinds[test])]
        if name := left_out(item, demanded) or (WHOLE if kind != in_turn else None):
            without[item] = name
    return without


def part(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests of the part that is asked for; all where none is.

    By the checksum of their names, but for modules whose tests share a server: these are dealt out
    whole, in their order, or else each part would start all servers.
    """
    number, _, of = os.environ.get(PART, "1/1").partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise pytest.UsageError(f"{PART} is a part of all, such as 2/3, not {os.environ[PART]!r}")
    dealt: dict[str, int] = {}

    def turn(name: str) -> int:
        module = name.partition("::")[0]
        if module.startswith(SERVED):
            return dealt.setdefault(module, len(dealt))
        return zlib.crc32(name.encode())

    return [item for item in items if turn(item.nodeid) % int(of) == int(number) - 1]


def kind_of(item: pytest.Item) -> tuple[str, str]:
    """The test without the kind of its caller, and that kind; empty for one that has none."""
    callspec = getattr(item, "callspec", None)
    for parameter, kinds in KINDS.items():
        kind = str(callspec.params.get(parameter)) if callspec is not None else ""
        if kind in kinds:
            name, _, values = item.nodeid.partition("[")
            return f"{name}[{values.replace(kind, '')}", kind
    return item.nodeid, ""


def without_sandbox() -> list[pytest.MarkDecorator]:
    """Marks of a variant without a sandbox: the core has it on machines that have none."""
    marks = [] if requirements.missing("bubblewrap") else [pytest.mark.whole]
    return [pytest.mark.sandboxless, *marks]


def examples(whole: int) -> int:
    """How many examples a property gets that has `whole` of them in the whole suite.

    In the core a third, as the properties that name no number; in a soak in proportion more.
    """
    return max(2, whole * settings().max_examples // WHOLE_EXAMPLES)


def core(of: Container[Any], values: Iterable[Any]) -> list[Any]:
    """Values to parametrize a test with, of which the core has those `of` alone."""
    marks = {True: [], False: [pytest.mark.whole]}
    return [pytest.param(value, marks=marks[value in of]) for value in values]


def summary(without: Counter[str], skipped: Iterable[Any]) -> list[str]:
    """Two lines: what was left out, and how to have it. None where nothing was.

    Args:
        without: what `choose` has left out.
        skipped: reports of tests that were skipped.
    """
    counts = Counter(without)
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        name, _, _ = reason.removeprefix("Skipped: needs ").partition(":")
        counts[name if name in requirements.PROBES else OTHER] += 1
    if not counts:
        return []
    told = ", ".join(
        f"{number} {PHRASES.get(name, f'need {name}')}" for name, number in counts.most_common()
    )
    remedies = [requirements.REMEDIES[name] for name in requirements.PROBES if counts[name]]
    if without:
        remedies.append("make test-all")
    if counts[OTHER]:
        remedies.append("the reasons of others: ARGS=-rs")
    return [f"Left out: {told}.", f"To have it: {', '.join(dict.fromkeys(remedies))}."]
