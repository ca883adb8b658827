"""Every command explains itself in one style, with an example that is taken."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest
import typer

from oubliette.cli import main
from oubliette.cli.main import EXAMPLES
from oubliette.version import __version__
from tests.unit.cli.command_line import Run

ROOT = typer.main.get_command(main.app)


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command that does something."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path
        return
    for name, each in inner.items():
        yield from commands(each, (*path, name))


def groups(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    inner = getattr(command, "commands", None)
    if inner is not None:
        if path:
            yield path
        for name, each in inner.items():
            yield from groups(each, (*path, name))


def at(path: tuple[str, ...]) -> click.Command:
    found = ROOT
    for word in path:
        found = found.commands[word]  # type: ignore[attr-defined]
    return found


def options(command: click.Command) -> list[click.Parameter]:
    return [each for each in command.params if not getattr(each, "hidden", False)]


ALL = list(commands(ROOT))
EACH = pytest.mark.parametrize("path", ALL, ids=" ".join)


def test_there_are_examples_of_no_other_commands() -> None:
    assert set(EXAMPLES) <= {" ".join(path) for path in ALL}


@pytest.mark.parametrize("path", [*ALL, *groups(ROOT)], ids=" ".join)
def test_a_summary_is_one_sentence(path: tuple[str, ...]) -> None:
    summary = (at(path).help or "").partition("\n\n")[0]
    assert summary[:1].isupper(), summary
    assert summary.endswith("."), summary
    assert "\n" not in summary, summary
    assert len(summary) <= 90


@EACH
def test_each_argument_and_option_is_described(path: tuple[str, ...]) -> None:
    for each in options(at(path)):
        text = getattr(each, "help", None) or ""
        assert text, each.name
        assert not text[0].isalpha() or text[0].isupper(), f"{each.name}: {text}"
        assert text.rstrip().endswith("."), f"{each.name}: {text}"


@EACH
def test_the_example_stands_in_the_help_and_is_taken(path: tuple[str, ...]) -> None:
    head, _, example = (at(path).epilog or "").partition(" ")
    assert head == "Example:"
    words = shlex.split(example)
    assert words[: len(path) + 1] == ["oubliette", *path]
    # Parsed as it stands: an option or argument that is not there would be refused.
    with at(path).make_context(path[-1], words[len(path) + 1 :]) as context:
        assert context.params is not None


@EACH
def test_the_home_and_the_form_of_the_output_are_options_of_every_command(
    path: tuple[str, ...],
) -> None:
    if path == ("demo",):  # has a home of its own, and shows its steps
        return
    named = {flag for each in options(at(path)) for flag in each.opts}
    assert "--output" in named
    without = {
        ("config", "schema"),
        ("docs",),
        ("cluster", "up"),
        ("cluster", "down"),
    }  # the last: --folder
    assert "--home" in named or path in without


@pytest.mark.parametrize(
    "words",
    [[], ["project"], ["project", "create"], ["call"], ["call", "project_list"], ["serve"]],
    ids=" ".join,
)
def test_help_is_asked_for_in_three_ways(run: Run, words: list[str]) -> None:
    done = run(*words, "--help")
    assert done.code == 0
    assert done.out.startswith("Usage: oubliette")
    assert run(*words, "-h") == done
    assert run("help", *words) == done


def test_the_version_has_a_short_option(run: Run) -> None:
    assert run("-V") == run("--version")
    assert run("-V").out == f"oubliette {__version__}\n"
