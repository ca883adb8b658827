"""Blocks of code in the documents are valid: configuration, commands, data, programs, scripts."""

from __future__ import annotations

import ast
import json
import re
import shlex
import textwrap
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import typer.main

from oubliette.cli.main import app
from oubliette.config.loader import load
from oubliette.incontainer.scripted_agent import script

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")),
    *sorted(DOCS.rglob("*.md")),
)
FENCE = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")
SPAN = re.compile(r"`(oubliette [^`]+)`")
COMMAND = re.compile(r"(?:^|[|;(] ?|\$ )(?:\w+=\S+ )*(oubliette(?: [^|;)\n]*)?)", re.M)
LANGUAGES = {"text", "sh", "console", "toml", "json", "python", "ini", "mermaid"}
"""`text` holds drawings, forms of commands and of messages; nothing is checked but commands."""
ROOT_COMMAND = typer.main.get_command(app)


class Block(NamedTuple):
    page: Path
    language: str
    text: str


def blocks(*languages: str) -> list[Block]:
    found = [
        Block(page, *match.groups()) for page in PAGES for match in FENCE.finditer(page.read_text())
    ]
    return [each for each in found if not languages or each.language in languages]


def named(block: Block) -> str:
    first = block.text.splitlines()[0]
    return f"{block.page.name}:{first[:40]}"


def mistakes(line: str) -> Iterator[str]:
    """Return the words of a command line that the program does not know.

    Words in capitals stand for something else; all after one are arguments.
    """
    words = [word.strip("[]()…") for word in re.split(r"[\s|]+", line.partition("#")[0])]
    command: Any = ROOT_COMMAND
    for word in words[1:]:
        group = getattr(command, "commands", None)
        if group is None or word.startswith("-"):
            break
        if not word or word.isupper():
            return
        if word not in group:
            yield f"{line!r}: no command {word}"
            return
        command = group[word]
    if command.context_settings.get("ignore_unknown_options"):
        return  # it parses its options itself
    known = {opt for each in command.params for opt in (*each.opts, *each.secondary_opts)}
    known.add("--help")
    for word in words[1:]:
        option = word.partition("=")[0]
        if re.fullmatch(r"--?[a-z][a-z-]*", option) and option not in known:
            yield f"{line!r}: no option {option}"


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in FENCE.finditer(text):
            if block[1] in {"sh", "console", "text"}:
                joined = re.sub(r"\\?\n {5,}", " ", block[2])
                for line in COMMAND.findall(joined):
                    yield page.name, line
        for span in SPAN.findall(FENCE.sub("", text)):
            yield page.name, " ".join(span.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_has_a_language(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert {language for language, _ in FENCE.findall(text)} <= LANGUAGES
    assert len(re.findall(r"(?m)^```", text)) == 2 * len(FENCE.findall(text))
    indented = re.findall(r"(?m)^\n {4,}\S.*$", FENCE.sub("", text))
    assert indented == [], "give the block ``` and a language"


def test_every_command_of_a_page_has_the_options_that_it_shows() -> None:
    found = list(commands())
    assert len(found) > 50
    assert [f"{page}: {each}" for page, line in found for each in mistakes(line)] == []


@pytest.mark.parametrize(
    ("line", "mistaken"),
    [
        ("oubliette token create --scope write --name x", 0),
        ("oubliette token make --scope write", 1),
        ("oubliette token create --rights write --owner me", 2),
        ("oubliette session end ID [--tree]", 0),
        ("oubliette session end ID [--twig]", 1),
        ("oubliette COMMAND [OPTIONS]", 0),
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str, mistaken: int) -> None:
    assert len(list(mistakes(line))) == mistaken


@pytest.mark.parametrize("block", blocks("toml"), ids=named)
def test_a_block_of_configuration_is_one_that_a_server_accepts(
    block: Block, tmp_path: Path
) -> None:
    if "project.entry-points" in block.text:
        assert tomllib.loads(block.text)
        return
    (tmp_path / "oubliette.toml").write_text(block.text, encoding="utf-8")
    assert set(load(tmp_path, {}).sources.values()) > {"default"}


def test_the_variables_of_the_configuration_page_are_ones_that_a_server_accepts(
    tmp_path: Path,
) -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    found = re.findall(r"^(OUBLIETTE_\w+__\w+=\S+)$", page, re.M)
    found += re.findall(r"`(OUBLIETTE_\w+__\w+=[^`]+)`", page)
    assert len(found) >= 5
    environ = dict(shlex.split(each)[0].split("=", 1) for each in found)
    loaded = load(tmp_path, environ)
    assert len([each for each in loaded.sources.values() if "environment" in each]) == len(found)


@pytest.mark.parametrize("block", blocks("json"), ids=named)
def test_a_block_of_json_is_json(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", blocks("python"), ids=named)
def test_a_block_of_python_compiles(block: Block) -> None:
    compile(block.text, block.page.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_script_of_the_scripted_agents_page_is_one() -> None:
    page = DOCS / "scripted-agent.md"
    (text,) = [each.text for each in blocks("text") if each.page == page]
    assert len(script.parse(textwrap.dedent(text))) == 4


def test_every_directive_of_the_scripted_agents_page_is_one() -> None:
    page = (DOCS / "scripted-agent.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z-]+)", page.partition("## Its protocol")[0], re.M)
    assert sorted(listed) == sorted({*script.DIRECTIVES, "parallel", "tools"})
