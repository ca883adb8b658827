"""Loader of the configuration, from `<home>/oubliette.toml`, the environment and the command line.

Every key is also a variable, `OUBLIETTE_SECTION__KEY`; in a named table it is
`OUBLIETTE_SECTION__NAME__KEY`.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
import types
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from oubliette.config.container_options import ContainerOptions, ContainerOverrides, given
from oubliette.config.field_docs import field_docs
from oubliette.config.schema import FILE_NAME, Config
from oubliette.config.sections import (
    SECTIONS_OF_PACKAGES,
    SECTIONS_OF_TABLES,
    duration_keys,
    is_setting,
    sections,
    table_kind,
)
from oubliette.durations import seconds_of
from oubliette.errors import ConfigError, InvalidParameter, did_you_mean
from oubliette.user_paths import absolute, working_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_PREFIX: Final = "OUBLIETTE_"
_REMEDIES: Final = {
    "cluster.snapshots": 'set it to "postgres", to "node", or to the absolute path of a folder on'
    " storage that all nodes share",
}
"""Remedies for invalid values of keys, where a pattern alone is no help."""


_REFERENCES: Final = "env:[A-Za-z_]"
"""Part of the patterns of all keys that refer to a secret."""
_REFERENCE_REMEDY: Final = (
    "put the secret into a variable or a file, and its name here: env:NAME or file:/path"
)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration and the source of each of its keys."""

    config: Config
    sources: dict[str, str]
    """`section.key` → `default`, the file's path, `environment (VARIABLE)` or the origin."""


def find_home(explicit: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return `explicit`, else `OUBLIETTE_HOME`, `./.oubliette` if it exists, `~/.oubliette`.

    Raises:
        ConfigError: the machine does not know this folder.
    """
    if explicit is not None:
        return absolute(explicit, "the home")
    if chosen := environ.get("OUBLIETTE_HOME"):
        return absolute(chosen, "OUBLIETTE_HOME")
    local = working_folder() / ".oubliette"
    return local if os.path.isdir(local) else absolute("~/.oubliette", "the home")  # noqa: PTH112 - no error where access is denied


def load(
    home: Path,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, object] | None = None,
    *,
    origin: str = "command line",
    text: str | None = None,
) -> Loaded:
    """Read the file of `home`, the environment, then `overrides` (`section.key` → value).

    Later sources take precedence. In the environment a list is JSON, or its entries separated by
    commas. `origin` is what errors call the source of the overrides. With `text` that is what the
    file contains, which is not read.

    Raises:
        ConfigError: an unreadable file, an unknown key or an invalid value; names the key and its
            source.
    """
    path = home / FILE_NAME
    tree: dict[str, dict[str, Any]] = {}
    sources: dict[str, str] = {}
    _put_file(tree, sources, path, text_of(path) if text is None else text)
    for variable, given_text in environ.items():
        if not variable.startswith(_PREFIX) or "__" not in variable:
            continue
        key = variable[len(_PREFIX) :].lower().replace("__", ".", 1)
        words = tuple(key.split(".", 1))
        if words[0] in SECTIONS_OF_TABLES and "__" in words[1]:
            words = (words[0], *words[1].split("__", 1))
        elif key not in schema_keys():
            raise _unknown(key, schema_keys(), f"{variable}: there is no key")
        value = value_of_text(words, given_text)
        _put(tree, sources, words, value, f"environment ({variable})")
    for key, value in (overrides or {}).items():
        _put(tree, sources, _words(key, value, origin), value, origin)
    config = _convert(tree, path, sources)
    return Loaded(config=config, sources={key: sources.get(key, "default") for key in flat(config)})


def key_words(key: str, wrong: str = "there is no key") -> tuple[str, ...]:
    """Return the section and the name of a key, between them the name of its table if it has one.

    Raises:
        ConfigError: there is no such key; begins with `wrong`, has the one that was probably meant.
    """
    section, _, rest = key.partition(".")
    if section not in SECTIONS_OF_TABLES:
        if key not in schema_keys():
            raise _unknown(key, schema_keys(), wrong)
        return section, rest
    table, _, name = rest.rpartition(".")
    if not table or not name:
        raise ConfigError(f"{wrong} {key}", hint=f"write {section}.NAME.KEY")
    _check_option(section, table, name, wrong)
    return section, table, name


def _put_file(
    tree: dict[str, dict[str, Any]], sources: dict[str, str], path: Path, text: str
) -> None:
    """Set what the file has."""
    for section, keys in _parsed(path, text).items():
        if section not in Config.__struct_fields__:
            known = Config.__struct_fields__
            raise _unknown(section, known, f"{path}: there is no section")
        if not isinstance(keys, dict):
            raise ConfigError(f"{path}: {section} must be a table, [{section}]")
        for name, value in cast("dict[str, Any]", keys).items():
            key = f"{section}.{name}"
            if section in SECTIONS_OF_TABLES:
                if not isinstance(value, dict):
                    raise ConfigError(f"{path}: {key} must be a table, [{key}]")
                _table(tree, section, name, str(path))
                for option, given_value in cast("dict[str, Any]", value).items():
                    _put(tree, sources, (section, name, option), given_value, str(path))
                continue
            if key not in schema_keys():
                error = _unknown(key, schema_keys(), f"{path}: there is no key")
                if section == "agents" and isinstance(value, dict):
                    error.hint = (
                        f"an agent that speaks ACP is a table [acp_agents.{name}], one of an"
                        f" installed package [package_agents.{name}]"
                    )
                raise error
            _put(tree, sources, (section, name), value, str(path))


def _words(key: str, value: object, origin: str) -> tuple[str, ...]:
    """The words of the key of an override, which may also be a whole table with its keys."""
    section, _, name = key.partition(".")
    if section in SECTIONS_OF_TABLES and isinstance(value, dict):
        return section, name
    return key_words(key, f"{origin}: there is no key")


def _put(
    tree: dict[str, dict[str, Any]],
    sources: dict[str, str],
    words: tuple[str, ...],
    value: object,
    source: str,
) -> None:
    """Set one key: section and name, or section, table and name.

    Raises:
        ConfigError: the name of the table is invalid, or its tables have no such key.
    """
    section, *tables, name = words
    key = ".".join(words)
    part = tree.setdefault(section, {})
    for table in tables:
        part = _table(tree, section, table, source)
        if section in SECTIONS_OF_PACKAGES:
            if not is_setting(value):
                raise ConfigError(
                    f"{key}: a setting of a package is a text, a number, a boolean or a list of"
                    f" them (from {source})",
                    hint="write a longer key instead of a table in the table",
                )
            continue
        _check_option(section, table, name, f"{source}: there is no key")
    part[name] = _duration(words, value, source)
    sources[key] = source


def _check_option(section: str, table: str, name: str, what: str) -> None:
    """Check that tables of the section have this key; a package knows its own."""
    names = table_kind(section).__struct_fields__
    if section not in SECTIONS_OF_PACKAGES and name not in names:
        known = [f"{section}.{table}.{each}" for each in names]
        raise _unknown(f"{section}.{table}.{name}", known, what)


def _duration(words: tuple[str, ...], value: object, source: str) -> object:
    """Convert a text in a key that takes seconds to seconds; return any other value unchanged.

    Raises:
        ConfigError: the text is no duration.
    """
    kind = None if words[0] in SECTIONS_OF_TABLES else sections().get(words[0])
    if not isinstance(value, str) or kind is None or words[-1] not in duration_keys(kind):
        return value
    try:
        return seconds_of(value)
    except InvalidParameter as error:
        raise ConfigError(f"{'.'.join(words)}: {error.message} (from {source})") from error


def _table(
    tree: dict[str, dict[str, Any]], section: str, table: str, source: str
) -> dict[str, Any]:
    if not re.search(SECTIONS_OF_TABLES[section], table):
        raise ConfigError(
            f"{source}: {section} cannot have a table {table!r}",
            hint=f"its name has to match {SECTIONS_OF_TABLES[section]}",
        )
    return tree.setdefault(section, {}).setdefault(table, {})


def flat(config: Config) -> dict[str, object]:
    """Return every key of `config` with its value; of named tables, the keys that are set."""
    keys: dict[str, object] = {}
    for section in config.__struct_fields__:
        part = getattr(config, section)
        if isinstance(part, dict):
            for table, entry in cast("dict[str, Any]", part).items():
                if isinstance(entry, ContainerOverrides):
                    own = given(entry)
                elif isinstance(entry, dict):
                    own = cast("dict[str, object]", entry)
                else:
                    own = msgspec.structs.asdict(entry)
                keys.update({f"{section}.{table}.{name}": value for name, value in own.items()})
            continue
        keys.update({f"{section}.{name}": getattr(part, name) for name in part.__struct_fields__})
    return keys


def text_of(path: Path) -> str:
    """Return what the file contains; nothing if it is missing.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        if stat.S_ISFIFO(path.stat().st_mode):  # which may never be written to
            raise ConfigError(f"{path}: is a pipe", hint="put a plain file there, or remove it")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except OSError as error:
        hint = "it has to be a file in a folder, which this user may read; --home names the folder"
        raise ConfigError(f"{path}: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8") from error


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:  # a number of too many digits is no TOMLDecodeError
        hint = 'texts are quoted: key = "text"; oubliette config schema describes all keys'
        raise ConfigError(f"{path}: {error}", hint=hint) from error
    except RecursionError:
        raise ConfigError(f"{path}: has lists or tables that are nested too deeply") from None


def _unknown(name: str, known: Iterable[str], what: str) -> ConfigError:
    names = sorted(known)
    # The right key in the wrong section is preferred to a similar name.
    near = [key for key in names if key.rpartition(".")[2] == name.rpartition(".")[2]][:1]
    hint = f"did you mean {near[0]}?" if near else did_you_mean(name, names).rstrip()
    return ConfigError(f"{what} {name}", hint=hint or "oubliette config schema lists the keys")


def value_of_text(words: tuple[str, ...], text: str) -> object:
    """Convert a text to the type of its key where possible; whether it is valid `load` checks."""
    if words[0] in SECTIONS_OF_PACKAGES:
        if text.lstrip().startswith("["):
            try:
                return msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                return text
        return text
    tables = words[0] in SECTIONS_OF_TABLES
    kind = table_kind(words[0]) if tables else sections()[words[0]]
    hint = get_type_hints(kind, include_extras=True).get(words[-1], str)
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) is tuple:
        if text.lstrip().startswith("["):
            try:
                return msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                return text
        return [part.strip() for part in text.split(",") if part.strip()]
    if get_origin(hint) in {Union, types.UnionType}:
        kind = get_args(hint)[0]  # the other one is None
        hint = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    try:
        return msgspec.convert(text, hint, strict=False)
    except msgspec.ValidationError:
        return text


def _convert(tree: dict[str, dict[str, Any]], path: Path, sources: dict[str, str]) -> Config:
    prefix = ""
    try:
        for section in SECTIONS_OF_TABLES.keys() - SECTIONS_OF_PACKAGES:
            for table, keys in tree.get(section, {}).items():
                prefix = f"{section}.{table}."  # msgspec's errors do not contain the table's name
                kind = table_kind(section)
                kind = ContainerOverrides if kind is ContainerOptions else kind
                tree[section][table] = msgspec.convert(keys, kind)
        prefix = ""
        return msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        key = prefix + place.rstrip("`").partition("[")[0]
        reference = _REFERENCE_REMEDY if _REFERENCES in what else None
        raise ConfigError(
            f"{key}: {_said(key, what)} (from {sources.get(key, path)})",
            hint=reference or _REMEDIES.get(key, "oubliette config schema lists the valid keys"),
        ) from error


def _said(key: str, what: str) -> str:
    """Return an error of msgspec as a sentence; that of a pattern has the key's description."""
    if "matching regex" not in what:
        return f"{what[:1].lower()}{what[1:].replace('`', '')}"
    section, *_, name = key.split(".")
    tables = section in SECTIONS_OF_TABLES
    docs = field_docs(table_kind(section) if tables else sections()[section])
    doc = docs.get(name, "see its description").partition(". ")[0].rstrip(".")
    if _REFERENCES in what:
        return f"must name the place of the secret, not be the secret: {doc}"
    return f"has another form than this key takes: {doc}"


def schema_keys() -> dict[str, object]:
    """Return every `section.key` with its default; without the keys of named tables."""
    return flat(Config())
