"""Commands `oubliette config show | schema`."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from oubliette.cli.terminal.output import Format, Home, Output, print_json, print_table

app = typer.Typer(help="The configuration.", no_args_is_help=True)


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

    from oubliette.config.loader import find_home, flat, load
    from oubliette.config.secret_names import (
        url_passwords_hidden,
        url_to_show,
        value_to_show,
        without_secrets,
    )
    from oubliette.config.sections import SECTIONS_OF_PACKAGES, SECTIONS_OF_TABLES

    place = find_home(home)
    loaded = load(place)
    tree: dict[str, dict[str, Any]] = without_secrets(msgspec.to_builtins(loaded.config))
    values = {
        key: value_to_show(key.rpartition(".")[2], value)
        if key.partition(".")[0] in SECTIONS_OF_PACKAGES
        else url_passwords_hidden(value)
        for key, value in flat(loaded.config).items()
    }
    values["store.database"] = url_to_show(loaded.config.store.database)
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
    for section, keys in tree.items():
        if section in SECTIONS_OF_TABLES:
            for table, options in keys.items():
                _print_table(f"{section}.{_toml(table)}", options)
        else:
            _print_table(section, keys)


def _print_table(name: str, keys: dict[str, Any]) -> None:
    sys.stdout.write(f"[{name}]\n")
    for key, value in keys.items():
        mark = "# " if value is None else ""
        sys.stdout.write(f"{mark}{key} = {_toml(value)}\n")
    sys.stdout.write("\n")


@app.command("schema")
def schema(output: Output = Format.text) -> None:
    """Print the JSON Schema of oubliette.toml."""
    from oubliette.config.json_schema import schema as config_schema

    if output is Format.json:
        print_json(config_schema())
    else:
        sys.stdout.write(json.dumps(config_schema(), indent=2, ensure_ascii=False) + "\n")


def _toml(value: Any) -> str:
    return '""' if value is None else json.dumps(value, ensure_ascii=False)
