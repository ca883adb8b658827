"""Commands `oubliette config show | schema | get | set | unset | edit`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    note,
    paged,
    print_json,
    print_table,
)
from oubliette.errors import ConfigError, Conflict, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from oubliette.config.loader import Loaded

app = typer.Typer(help="The configuration.", no_args_is_help=True)

Key = Annotated[
    str,
    typer.Argument(help="Key as section.name; in a table of your own as section.TABLE.name."),
]


@app.command("show")
def show(
    sources: Annotated[
        bool, typer.Option("--sources", help="Show the source of each value.")
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Show the configuration as a server would use it."""
    import msgspec

    from oubliette.config.loader import find_home, load
    from oubliette.config.secret_names import without_secrets
    from oubliette.config.sections import SECTIONS_OF_TABLES

    place = find_home(home)
    loaded = load(place)
    tree: dict[str, dict[str, Any]] = without_secrets(msgspec.to_builtins(loaded.config))
    values = _values_to_show(loaded)
    if output is Format.json:
        if sources:
            print_json(
                {
                    key: {"value": value, "source": loaded.sources[key]}
                    for key, value in values.items()
                }
            )
        else:
            print_json(tree)
        return
    if sources:
        print_table(
            ("KEY", "VALUE", "SOURCE"),
            [(key, _toml(value), loaded.sources[key]) for key, value in values.items()],
        )
        return
    with paged() as to:
        for section, keys in tree.items():
            if section in SECTIONS_OF_TABLES:
                for table, options in keys.items():
                    _print_table(f"{section}.{_toml(table)}", options, to)
            else:
                _print_table(section, keys, to)


def _values_to_show(loaded: Loaded) -> dict[str, Any]:
    """Return every key with its value, or with what is printed in its place."""
    from oubliette.config.loader import flat
    from oubliette.config.secret_names import url_passwords_hidden, url_to_show, value_to_show
    from oubliette.config.sections import SECTIONS_OF_PACKAGES

    values = {
        key: value_to_show(key.rpartition(".")[2], value)
        if key.partition(".")[0] in SECTIONS_OF_PACKAGES
        else url_passwords_hidden(value)
        for key, value in flat(loaded.config).items()
    }
    values["store.database"] = url_to_show(loaded.config.store.database)
    return values


def _print_table(name: str, keys: dict[str, Any], to: IO[str]) -> None:
    to.write(f"[{name}]\n")
    for key, value in keys.items():
        mark = "# " if value is None else ""
        to.write(f"{mark}{key} = {_toml(value)}\n")
    to.write("\n")


@app.command("schema")
def schema(output: Output = Format.text) -> None:
    """Print the JSON Schema of oubliette.toml."""
    from oubliette.config.json_schema import schema as config_schema

    if output is Format.json:
        print_json(config_schema())
    else:
        with paged() as to:
            to.write(json.dumps(config_schema(), indent=2, ensure_ascii=False) + "\n")


@app.command("get")
def get(key: Key, home: Home = None, output: Output = Format.text) -> None:
    """Print the value of a key, and where it comes from.

    The value is alone on stdout, its source on stderr. A key that has no value prints an empty
    line.
    """
    from oubliette.config.loader import find_home, key_words, load

    loaded = load(find_home(home))
    key_words(key)
    values = _values_to_show(loaded)
    if key not in values:
        raise NotFound(f"{key} is not set", hint=f"oubliette config set {shlex.quote(key)} VALUE")
    value, source = values[key], loaded.sources[key]
    if output is Format.json:
        print_json({"key": key, "value": value, "source": source})
        return
    plain = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    sys.stdout.write(f"{plain}\n")
    note(f"from: {source}")


@app.command("set")
def set_value(
    key: Key,
    value: Annotated[
        str,
        typer.Argument(
            help="Value; a list as JSON, or its entries separated by commas. A secret is named:"
            " env:NAME or file:/path."
        ),
    ],
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Set a key in oubliette.toml; everything else in the file stays as it is."""
    from oubliette.config.loader import find_home, key_words, load, text_of, value_of_text
    from oubliette.config.schema import FILE_NAME
    from oubliette.config.toml_text import with_value

    place = find_home(home)
    path = place / FILE_NAME
    words = key_words(key)
    given = value_of_text(words, value)
    _check_secret(words, given)
    load(place, {}, {key: given})
    text = with_value(text_of(path), words, given)
    source = load(place, text=text).sources[key]
    _write(path, text)
    pid = server_of(place)
    if output is Format.json:
        print_json({"key": key, "value": given, "file": str(path), "restart": pid is not None})
        return
    note(f"{key} = {_toml(given)} (in {path})")
    if source != str(path):
        note(f"{source} takes precedence over the file.")
    note_restart(pid)


@app.command("unset")
def unset(key: Key, home: Home = None, output: Output = Format.text) -> None:
    """Take a key out of oubliette.toml, so that its default holds again."""
    from oubliette.config.loader import find_home, key_words, load, text_of
    from oubliette.config.schema import FILE_NAME
    from oubliette.config.toml_text import parsed, without

    place = find_home(home)
    path = place / FILE_NAME
    words = key_words(key)
    before = text_of(path)
    part: Any = parsed(before)
    for word in words:
        part = cast("Any", part).get(word) if isinstance(part, dict) else None
    if part is None:
        raise NotFound(f"{key} is not in {path}", hint=f"oubliette config get {shlex.quote(key)}")
    text = without(before, words)
    value = _values_to_show(load(place, text=text)).get(key)
    _write(path, text)
    pid = server_of(place)
    if output is Format.json:
        print_json({"key": key, "value": value, "file": str(path), "restart": pid is not None})
        return
    note(f"{key} is not set in {path}; it is {_toml(value)}.")
    note_restart(pid)


@app.command("edit")
def edit(home: Home = None, output: Output = Format.text) -> None:
    """Open oubliette.toml in your editor, and store it if it is valid.

    The editor is $VISUAL, else $EDITOR, else one that is installed.
    """
    from oubliette.config.loader import find_home, text_of
    from oubliette.config.schema import FILE_NAME

    place = find_home(home)
    path = place / FILE_NAME
    before = text_of(path)
    text = before or "# oubliette config schema lists the keys.\n"
    while True:
        text = _edited(text)
        try:
            _check_file(place, text)
            break
        except ConfigError as error:
            if not sys.stdin.isatty():
                raise
            note(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))
            if not typer.confirm("Edit it again?", default=True, err=True):
                raise ConfigError(f"{path} is unchanged") from error
    if text_of(path) != before:
        raise Conflict(f"{path} was changed meanwhile, and is left so", hint="edit it again")
    changed = text != before
    if changed:
        _write(path, text)
    pid = server_of(place) if changed else None
    if output is Format.json:
        print_json({"file": str(path), "changed": changed, "restart": pid is not None})
        return
    note(f"{path} is {'stored' if changed else 'unchanged'}.")
    note_restart(pid)


def _check_secret(words: Sequence[str], value: object) -> None:
    """Refuse a secret in clear, where the schema alone cannot.

    Raises:
        ConfigError: names the key, not the secret.
    """
    from oubliette.config.secret_names import value_to_show
    from oubliette.config.sections import SECTIONS_OF_PACKAGES
    from oubliette.runtime.agents.environment import check_reference, check_variables

    if words[-1] == "env" and isinstance(value, list | tuple):
        entries = [str(each) for each in cast("Sequence[object]", value)]
        check_variables(entries, ".".join(words[:-1]))
    elif words[0] in SECTIONS_OF_PACKAGES and value_to_show(words[-1], value) != value:
        check_reference("", ".".join(words))


def _check_file(place: Path, text: str) -> None:
    """Check the text of a whole file.

    Raises:
        ConfigError: names the key.
    """
    from oubliette.config.loader import flat, key_words, load

    loaded = load(place, {}, text=text)
    for key, value in flat(loaded.config).items():
        if loaded.sources[key] != "default":
            _check_secret(key_words(key), value)


def _edited(text: str) -> str:
    """Return the text as the user's editor leaves it.

    Raises:
        Unavailable: there is no editor, or it failed.
    """
    names = (os.environ.get("VISUAL"), os.environ.get("EDITOR"))
    known = (shutil.which(name) for name in ("sensible-editor", "nano", "vi"))
    editor = next((each for each in (*names, *known) if each), None)
    if editor is None:
        raise Unavailable("no editor is installed", hint="set EDITOR to the command of one")
    import tempfile

    with tempfile.TemporaryDirectory(prefix="oubliette-") as folder:
        draft = Path(folder) / "oubliette.toml"
        draft.write_text(text, encoding="utf-8")
        try:
            code = subprocess.run([*shlex.split(editor), str(draft)], check=False).returncode
        except (OSError, ValueError) as error:
            raise Unavailable(f"{editor}: {error}", hint="set EDITOR to another command") from error
        if code != 0:
            raise Unavailable(f"{editor} ended with exit code {code}; nothing was stored")
        return draft.read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    from oubliette.runtime.files.home import prepare
    from oubliette.user_paths import replace_file

    prepare(path.parent)
    replace_file(path, text)


def server_of(place: Path) -> int | None:
    """The process id of the server that runs on a home; None if none does."""
    from oubliette.api.control import status_of

    status = status_of(place)
    return None if status is None else int(status["pid"])


def note_restart(pid: int | None) -> None:
    """Note that a server which runs has not read what was written."""
    if pid is not None:
        note(
            f"The server that runs (process {pid}) read its configuration when it started:"
            " oubliette stop, and start it again."
        )


def _toml(value: Any) -> str:
    return '""' if value is None else json.dumps(value, ensure_ascii=False)
