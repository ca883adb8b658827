"""Names that suggest a secret, and the values to hide where a configuration is printed.

The tables of packages have keys that Oubliette does not know. A secret belongs into a credential,
but nothing prevents a user from writing one there in clear.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

from oubliette.config.schema import SECTIONS_OF_PACKAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

HIDDEN: Final = "(hidden)"
"""Printed in place of a secret."""

REFERENCE: Final = re.compile(
    r"(?s)(env:[A-Za-z_][A-Za-z0-9_]*|file:[/~].*|credential:[a-z0-9_]+)\Z"
)
"""Source of a secret, which is none itself."""
_NAME_OF_CREDENTIAL: Final = re.compile(r"\$\{credential:[a-z0-9_]+\}\Z")
_SECRET_NAME: Final = re.compile(
    r"(?i)(^|_)(api_?key|key|token|secret|password|passwd|pat|credentials?)$"
)
_OTHER_SPELLING: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]+")
_IN_QUERY: Final = re.compile(r"(?i)(?<=[?&])((?:ssl)?password)=[^&#]*")
_BEFORE_LAST_AT: Final = re.compile(r"(?<=://)([^/@\s:]*):.*(?=@)", re.DOTALL)
_BEFORE_HOST: Final = re.compile(r"(?s)//.*@")
_IN_URL: Final = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+(?=@)")


def looks_secret(name: str) -> bool:
    """Return whether the name of a variable suggests a secret."""
    return _SECRET_NAME.search(name) is not None


def without_secrets(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration of plain values, with its secrets hidden.

    They are those in tables of packages, and the password in the URL of the database.
    """
    shown = dict(tree)
    if "store" in tree:
        store = cast("Mapping[str, Any]", tree["store"])
        shown["store"] = {**store, "database": url_to_show(str(store["database"]))}
    for section in SECTIONS_OF_PACKAGES & tree.keys():
        tables = cast("Mapping[str, Mapping[str, Any]]", tree[section])
        shown[section] = {
            table: {key: value_to_show(key, value) for key, value in keys.items()}
            for table, keys in tables.items()
        }
    return shown


def url_to_show(url: str) -> str:
    """Return the URL of a database with (hidden) in place of its password."""
    return _IN_QUERY.sub(rf"\1={HIDDEN}", _BEFORE_LAST_AT.sub(rf"\1:{HIDDEN}", url))


def bare_url(url: str) -> str:
    """Return a URL without its user, password, query and fragment, however malformed it is."""
    return _BEFORE_HOST.sub("//", url).partition("?")[0].partition("#")[0]


def remote_to_show(url: str) -> str:
    """Return the URL of a repository without what may be a password; ssh keeps its user."""
    if url.startswith("ssh://"):
        return _IN_URL.sub(r"\1", url)
    return _BEFORE_HOST.sub("//", url).partition("?")[0] if "://" in url else url


def value_to_show(key: str, value: object) -> object:
    """Return the value of a package's key, or what is printed in its place.

    Hidden are values under a name that suggests a secret, unless they are references, in a list
    also those of `NAME=VALUE`, and passwords in URLs.
    """
    if isinstance(value, list):
        return [value_to_show(key, each) for each in cast("list[object]", value)]
    if not isinstance(value, str):
        # A number may be a secret too, a switch is none.
        secret = looks_secret(_usual(key)) and value is not None and not isinstance(value, bool)
        return HIDDEN if secret else value
    if REFERENCE.match(value) or _NAME_OF_CREDENTIAL.match(value) or not value:
        return value
    if looks_secret(_usual(key)):
        return HIDDEN
    name, equals, rest = value.partition("=")
    if equals and looks_secret(_usual(name)):
        return value if REFERENCE.match(rest) else f"{name}={HIDDEN}"
    return _IN_URL.sub(rf"\1:{HIDDEN}", value)


def _usual(name: str) -> str:
    """Return a name as `looks_secret` expects it: `apiKey` and `api-key` as `api_Key`, `api_key`.

    A header with a key is `Authorization`, which has none of the usual words.
    """
    usual = _OTHER_SPELLING.sub("_", name.strip())
    return "token" if usual.lower() == "authorization" else usual
