"""Command `oubliette init`: the configuration of a home, a first key and an MCP client."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from oubliette.cli.client.calls import call, pages
from oubliette.cli.setup.clients import KEY_PREFIX, PROGRAMS, Client, path_of
from oubliette.cli.terminal.output import Format, Home, Output, note, print_json
from oubliette.errors import InvalidParameter, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from oubliette.config.schema import Config

SECRETS: Final = (
    "ANTHROPIC_API_KEY", "DEEPSEEK_API_KEY", "FACTORY_API_KEY", "GEMINI_API_KEY", "GROQ_API_KEY",
    "MISTRAL_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY", "XAI_API_KEY",
)  # fmt: skip
"""Variables with keys of models, as OpenCode and Droid read them."""
_SECTIONS: Final[Mapping[str, str]] = {
    "opencode": "opencode",
    "opencode-acp": "opencode",
    "droid": "droid",
}
"""Agent → the section with its model and its variables."""
_NONE: Final = "none"


class _Answers(NamedTuple):
    """The answers to all questions."""

    write: bool
    agent: str = "auto"
    model: str = ""
    secrets: tuple[str, ...] = ()
    client: Client | None = None


def init(
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Ask nothing: take the default of each question."),
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Set a home up: its configuration, a first key, and an MCP client if you like.

    It looks for agents and for variables with keys of models, and asks five questions at most
    before it writes anything. By default an existing configuration is kept, and no client is
    set up.
    """
    from oubliette.cli.terminal import logging_config
    from oubliette.config.loader import find_home
    from oubliette.config.schema import FILE_NAME

    if not yes and not sys.stdin.isatty():
        raise InvalidParameter(
            "init asks questions, and standard input is no terminal",
            hint="oubliette init --yes takes the default of each",
        )
    logging_config.configure("error", as_json=False)
    place = find_home(home)
    file = place / FILE_NAME
    with contextlib.redirect_stdout(sys.stderr):  # stdout gets the key alone
        answers = _asked(place, file, yes=yes)
    if answers.write:
        _write(place, file, answers)
    client = None
    if answers.client is not None:
        from oubliette.cli.setup import client_file, mcp

        client = mcp.put_in(client_file.read(answers.client), "oubliette", "write", home)
    made = _first_key(home)
    done: dict[str, Any] = {
        "home": str(place),
        "file": str(file),
        "written": answers.write,
        "token_id": made and made["token_id"],
        "token": made and made["token"],
        "client": client,
    }
    if output is Format.json:
        print_json(done)
        return
    if made is not None:
        note("A key for programs and other clients, which is not shown again:")
        sys.stdout.write(made["token"] + "\n")
        sys.stdout.flush()
    note('Next: oubliette run "…" in a checkout of yours, or oubliette serve for programs.')


def _asked(place: Path, file: Path, *, yes: bool) -> _Answers:
    """Ask what is not clear."""
    from oubliette.config.loader import load

    write = not file.exists() or _confirm(
        f"{file} is there. Replace it by a new one?", default=False, yes=yes
    )
    if not write:
        note(f"{file} is kept.")
        return _Answers(write=False, client=_client(yes=yes))
    agent = _agent(load(place, text="").config, yes=yes)
    model, secrets = "", ()
    if agent in _SECTIONS:
        question = f"Model of {agent}, as it names it (empty: its own choice)"
        model = _text(question, "", str, yes=yes)
        there = tuple(name for name in SECRETS if os.environ.get(name))
        names = ", ".join(there)
        if there and _confirm(f"Give {agent} {names} of this shell?", default=True, yes=yes):
            secrets = there
            note(f"The server reads {names} from its own environment: start it where they are set.")
    return _Answers(write, agent, model, secrets, _client(yes=yes))


def _agent(config: Config, *, yes: bool) -> str:
    """Ask for the agent of sessions that name none, if there is a choice."""
    from oubliette.cli.doctor import agents

    checks = agents.agents(config, versions=False)
    found = [check.facts["agent"] for check in checks if check.facts is not None]
    usable = {each["name"]: each.get("path") for each in found if each["usable"]}
    real = [name for name in usable if name != "scripted"]
    if not real:
        remedies = "; ".join(f"{check.detail} → {check.remedy}" for check in checks if check.remedy)
        note(remedies or "No agent is installed but the scripted one.")
        return "auto"
    note("Agents here: " + ", ".join(f"{name} ({usable[name] or 'built in'})" for name in usable))
    return _text("Agent of sessions that name none", real[0], _one_of(usable), yes=yes)


def _client(*, yes: bool) -> Client | None:
    """Ask for a client that is to reach the server, if one is here."""
    there = [each for each in Client if shutil.which(PROGRAMS[each]) or path_of(each).exists()]
    if not there:
        note("An MCP client reaches this server after: oubliette mcp setup CLIENT")
        return None
    question = f"MCP client to set up ({', '.join(there)} or {_NONE})"
    chosen = _text(question, _NONE, _one_of([*Client, _NONE]), yes=yes)
    return None if chosen == _NONE else Client(chosen)


def _confirm(question: str, *, default: bool, yes: bool) -> bool:
    return default if yes else typer.confirm(question, default=default, err=True)


def _text(question: str, default: str, check: Callable[[str], str], *, yes: bool) -> str:
    if yes:
        return default
    return str(
        typer.prompt(
            question, default=default, show_default=bool(default), value_proc=check, err=True
        )
    ).strip()


def _one_of(names: Iterable[str]) -> Callable[[str], str]:
    known = list(names)

    def check(given: str) -> str:
        if given.strip() not in known:
            raise typer.BadParameter(f"{given!r} is not one of: {', '.join(known)}")
        return given.strip()

    return check


def _write(place: Path, file: Path, answers: _Answers) -> None:
    """Write the configuration, with a comment above each key."""
    from oubliette.cli.config import note_restart, server_of
    from oubliette.config.field_docs import field_docs
    from oubliette.config.loader import load
    from oubliette.config.sections import sections
    from oubliette.config.toml_text import written
    from oubliette.runtime.files.home import prepare
    from oubliette.user_paths import replace_file

    values: dict[str, dict[str, object]] = {
        "server": {"port": 8080},
        "agents": {"default": answers.agent},
    }
    section = _SECTIONS.get(answers.agent)
    if section is not None:
        own: dict[str, object] = {}
        if answers.model:
            own["model"] = answers.model
        if answers.secrets:
            own["env"] = [f"{name}=env:{name}" for name in answers.secrets]
        values |= {section: own} if own else {}
    kinds = sections()
    text = written(
        "Configuration of Oubliette, which a server reads when it starts. oubliette config schema"
        " lists all keys, oubliette config set KEY VALUE changes one.",
        values,
        {name: field_docs(kinds[name]) for name in values},
    )
    load(place, {}, text=text)
    prepare(place)
    replace_file(file, text)
    note(f"{file} is written.")
    note_restart(server_of(place))


def _first_key(home: str | None) -> dict[str, Any] | None:
    """Make a key, if the home has none that is valid and no client's own."""
    try:
        known = pages(home, "token_list", "tokens", {})
    except NotFound:  # a home without a database
        known = []
    valid = [
        each
        for each in known
        if each["revoked_at"] is None and not each["name"].startswith(KEY_PREFIX)
    ]
    if valid:
        count = "a key" if len(valid) == 1 else f"{len(valid)} keys"
        note(f"The home has {count} already: oubliette token list")
        return None
    wanted = {"name": "init", "scope": "write", "principal": "operator"}
    return call(home, "token_create", wanted)
