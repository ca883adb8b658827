"""Options take plain values without Pydantic, and every other value as Typer takes it."""

from __future__ import annotations

import json
import subprocess
import sys
from enum import StrEnum
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from oubliette.cli.terminal.plain_values import LeanGroup


class Colour(StrEnum):
    red = "red"
    blue = "blue"


def program(lean: bool) -> typer.Typer:
    app = typer.Typer(cls=LeanGroup if lean else None)
    below = typer.Typer()

    @below.command()
    def show(
        text: Annotated[str, typer.Argument()],
        more: Annotated[list[str] | None, typer.Argument()] = None,
        number: Annotated[int | None, typer.Option(min=0, max=65535)] = None,
        seconds: Annotated[float | None, typer.Option()] = None,
        colour: Annotated[Colour, typer.Option()] = Colour.red,
        flag: Annotated[bool, typer.Option("--flag")] = False,
        home: Annotated[str | None, typer.Option(envvar="A_HOME")] = None,
        several: Annotated[list[int] | None, typer.Option()] = None,
    ) -> None:
        values = (text, more, number, seconds, colour, flag, home, several)
        print(json.dumps([f"{type(each).__name__} {each!r}" for each in values]))

    app.add_typer(below, name="below")
    return app


LINES = [
    ["a"],
    ["a", "b", "c"],
    ["a", "--number", "7"],
    ["a", "--number", "0"],
    ["a", "--number", "65535"],
    ["a", "--number", "65536"],
    ["a", "--number", "-1"],
    ["a", "--number", " 7 "],
    ["a", "--number", "7.0"],
    ["a", "--number", "1_000"],
    ["a", "--number", "٣"],
    ["a", "--number", "x"],
    ["a", "--seconds", "1.5"],
    ["a", "--seconds", "2"],
    ["a", "--seconds", "1_0.5"],
    ["a", "--seconds", ".5"],
    ["a", "--seconds", "٣.5"],
    ["a", "--seconds", "1e400"],
    ["a", "--seconds", "nan"],
    ["a", "--seconds", "soon"],
    ["a", "--colour", "blue"],
    ["a", "--colour", "Blue"],
    ["a", "--colour", "green"],
    ["a", "--flag"],
    ["a", "--home", ""],
    ["a", "--several", "1", "--several", "2"],
    ["a", "--several", "x"],
    [""],
    [],
    ["a", "--nothing"],
    ["--help"],
]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
@pytest.mark.parametrize("environment", [{}, {"A_HOME": "/from/there"}], ids=["plain", "env"])
def test_a_value_is_taken_or_refused_as_typer_does(line, environment):
    runs = [
        CliRunner().invoke(program(lean), ["below", "show", *line], env=environment)
        for lean in (True, False)
    ]
    assert runs[0].output == runs[1].output
    assert runs[0].exit_code == runs[1].exit_code


def test_a_command_with_plain_values_imports_no_pydantic(tmp_path):
    source = (
        "import sys, atexit, oubliette.cli.main as m\n"
        "atexit.register(lambda: print('pydantic' in sys.modules, file=sys.stderr))\n"
        f"m.run(['token', 'list', '--home', {str(tmp_path)!r}, '-o', 'json'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.splitlines()[-1] == "False", done.stderr


def test_the_log_is_written_without_rich_and_others_still_find_it():
    source = (
        "import sys\n"
        "from oubliette.cli.terminal.lean_structlog import import_structlog\n"
        "import_structlog()\n"
        "from oubliette.cli.terminal import logging_config\n"
        "import structlog\n"
        "print(*(name for name in sys.modules if name.startswith('rich')))\n"
        "logging_config.configure('info', as_json=False)\n"
        "try:\n"
        "    hidden = 'secret' + '-of-mine'\n"
        "    1 / 0\n"
        "except ZeroDivisionError:\n"
        "    structlog.get_logger('x').exception('broke')\n"
        "import rich.console\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "\n"
    assert "ZeroDivisionError" in done.stderr
    assert "secret-of-mine" not in done.stderr
