"""Configuration of a node in its home, where the address of the database is kept.

That may have a password, so it must not be among what Ray keeps, nor stay on a command line. The
file is made once, with mode 0600, and belongs to the user from then on.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from oubliette.config.loader import flat, load
from oubliette.config.schema import FILE_NAME
from oubliette.errors import ConfigError, Conflict
from oubliette.runtime.containers.host_paths import write_private

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_HIDDEN: Final = "store.database"


def is_configured(home: Path) -> bool:
    """Whether the node's home has a configuration."""
    return (home / FILE_NAME).exists()


def configure(home: Path, settings: Mapping[str, object], *, command: str) -> None:
    """Write `section.key` → value to the home's configuration; compare with one that is there.

    Args:
        home: of the node; made if it is missing.
        settings: what it must have.
        command: that makes it, for its reader.

    Raises:
        ConfigError: the file that is there is invalid.
        Conflict: it has another value.
    """
    path = home / FILE_NAME
    if path.exists():
        found = flat(load(home, environ={}).config)
        for key, value in settings.items():
            if found[key] != value:
                other = "" if key == _HIDDEN else f", {found[key]!r}"
                raise Conflict(
                    f"{path} has another {key}{other}",
                    hint="edit the file, or leave the option out",
                )
        return
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    sections: dict[str, list[str]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}\n")
    text = f"# Configuration of {home.name}, made by `{command}`; yours from now on.\n"
    text += "".join(f"\n[{name}]\n{''.join(keys)}" for name, keys in sections.items())
    write_private(path, text.encode())


def database_of(home: Path) -> str:
    """The address of the database that a node's home has.

    Raises:
        ConfigError: it has none, or its file is invalid.
    """
    database = load(home, environ={}).config.store.database
    if not database:
        raise ConfigError(
            f"{home / FILE_NAME} has no store.database, which a node of a cluster needs",
            hint="give it with --database postgresql://… at the first start",
        )
    return database
