"""The file that an MCP client reads its servers from, and the entry of ours in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from oubliette.cli.setup import commented_json
from oubliette.cli.setup.clients import FORMS, Client, path_of
from oubliette.config import toml_text
from oubliette.errors import ConfigError
from oubliette.user_paths import replace_file

_TOKEN: Final = re.compile(r"Bearer oub_(tok_[0-9a-z]{26})_[A-Za-z0-9_-]+")


class ClientFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a client, as it was read."""

    client: Client
    path: Path
    text: str

    @property
    def title(self) -> str:
        """Name of the client as a product."""
        return FORMS[self.client].title

    def token_id(self, name: str) -> str | None:
        """Return the id of the key in an entry, empty if it has no such key; None: no entry.

        Raises:
            ConfigError: the file cannot be read as what it should be.
        """
        form = FORMS[self.client]
        try:
            entries = _table(self._editor.parsed(self.text).get(form.section))
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error.message}", hint=error.hint) from error
        if name not in entries:
            return None
        key = _table(_table(entries[name]).get(form.headers)).get("Authorization")
        found = _TOKEN.fullmatch(key) if isinstance(key, str) else None
        return found[1] if found else ""

    def with_entry(self, name: str, url: str, key: str) -> str:
        """Return the text with an entry that leads to a server."""
        form = FORMS[self.client]
        entry = {
            **form.fixed,
            form.url: url,
            form.headers: {"Authorization": f"Bearer {key}"},
        }
        return self._editor.with_value(self.text, (form.section, name), entry)

    def without_entry(self, name: str) -> str:
        """Return the text without the entry, which has to be there."""
        return self._editor.without(self.text, (FORMS[self.client].section, name))

    def store(self, text: str) -> None:
        """Replace the file with one that only the user may read.

        Raises:
            ConfigError: it was changed after it was read.
        """
        if _text_of(self.path) != self.text:
            raise ConfigError(f"{self.path} was changed at this moment", hint="try again")
        replace_file(self.path, text)

    @property
    def _editor(self) -> Any:
        return toml_text if self.path.suffix == ".toml" else commented_json


def read(client: Client) -> ClientFile:
    """Read the file of a client, where it looks for it; a missing one is empty."""
    path = path_of(client)
    return ClientFile(client=client, path=path, text=_text_of(path))


def blank(client: Client) -> ClientFile:
    """Return the file of a client as if there were nothing in it."""
    return ClientFile(client=client, path=path_of(client), text="")


def _text_of(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
