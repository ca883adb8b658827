"""Command `oubliette doctor`: checks everything that a server needs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oubliette.cli.terminal.output import Format, Home, Output, clean, coloured, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.cli.doctor.checks import Check

_COLOURS = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}


def doctor(
    home: Home = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Start no container and no agent; takes less than a second."),
    ] = False,
    output: Output = Format.text,
) -> None:
    """Check everything that a server needs, and print a remedy for each problem.

    Exit code 1 if anything failed; warnings are no failure.
    """
    checks: list[Check] = []
    for check in _checks(home, quick=quick):
        checks.append(check)
        if output is Format.text:
            _print(check)
    bad = sum(check.status == "fail" for check in checks)
    if output is Format.json:
        rows: list[dict[str, Any]] = [
            {
                "name": each.name,
                "status": each.status,
                "detail": each.detail,
                "remedy": each.remedy,
            }
            for each in checks
        ]
        found = [each.facts for each in checks if each.facts is not None]
        print_json(
            {
                "ok": bad == 0,
                "checks": rows,
                "agents": [each["agent"] for each in found if "agent" in each],
                "credentials": [each["credential"] for each in found if "credential" in each],
            }
        )
    raise typer.Exit(1 if bad else 0)


def _checks(home: str | None, *, quick: bool) -> Iterator[Check]:
    from oubliette.cli.doctor import checks
    from oubliette.cli.terminal import logging_config
    from oubliette.config.loader import find_home, load
    from oubliette.config.schema import Config

    logging_config.configure("error", as_json=False)
    place = find_home(home)
    config: Config | None = None
    for found in checks.without_sandbox(place, lambda: load(place).config):
        if isinstance(found, Config):
            config = found
        else:
            yield found
    check, zipapp = checks.zipapp()
    yield check
    if config is None:
        return
    from oubliette.cli.doctor import agents, engines, sandbox
    from oubliette.runtime.containers import registry

    yield from agents.agents(config, versions=not quick)
    yield from agents.credentials(config)
    yield from engines.engines(config)
    several, usable = sandbox.sandbox(config, place)
    wanted = registry.lookup(config.containers.runtime)
    if wanted is not None and not wanted.uses_sandbox:
        yield from (sandbox.not_asked_for(each) for each in several)
        return
    yield from several
    if usable and zipapp is not None and not quick:
        yield sandbox.relay(config, zipapp)


def _print(check: Check) -> None:
    unused = check.status == "ok" and check.detail.startswith("not used")
    mark = f"{'-' if unused else check.status:<4}"
    if coloured(sys.stdout) and not unused:
        mark = f"{_COLOURS[check.status]}{mark}\x1b[0m"
    sys.stdout.write(f"{mark}  {check.name:<18}  {clean(check.detail)}\n")
    if check.remedy:
        sys.stdout.write(f"{'':<6}{'':<18}  → {clean(check.remedy)}\n")
    sys.stdout.flush()
