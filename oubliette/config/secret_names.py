"""Names that suggest a secret, and the values to hide where a configuration is printed.

The tables of packages have keys that Oubliette does not know. A secret belongs into a credential,
but nothing prevents a user from writing one there in clear.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

from oubliette.config.sections import SECTIONS_OF_PACKAGES

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
_DATABASE: Final = re.compile(
    r"""(?x)(?P<scheme>postgres(?:ql)?)://
    (?:(?P<user>(?:[\w.~!$&'()*+,;=-]|%[0-9a-f]{2})*)
       (?P<password>:(?:[\w.~!$&'()*+,;=-]|%[0-9a-f]{2})*)?@)?
    (?P<place>(?:(?:[\w.-]|%[0-9a-f]{2})*|\[[0-9a-f:.]+\])(?::\d{1,5})?
       (?:,(?:[\w.-]*|\[[0-9a-f:.]+\])(?::\d{1,5})?)*
       (?:/(?:[\w.~!$'()*+,;=-]|%[0-9a-f]{2})*)?)
    (?:\?(?P<query>[\w.]+=[^&#?@=]*(?:&[\w.]+=[^&#?@=]*)*))?""",
    re.IGNORECASE | re.ASCII,
)
"""A URL of a database that is well formed, so that its parts are what they seem to be."""
_HARMLESS: Final = frozenset(
    {"application_name", "connect_timeout", "dbname", "host", "hostaddr", "port", "sslmode",
     "target_session_attrs", "user"}
)  # fmt: skip
"""Parameters of such a URL whose values are shown."""
_BEFORE_HOST: Final = re.compile(r"(?s)//.*@")
_IN_URL: Final = re.compile(r"(?<=://)([^/@\s:]*):\S+(?=@)")


def looks_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def without_secrets(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of plain values, with its secrets hidden.

    They are those in tables of packages, in the URL of the database, and passwords in other URLs.
    """
    shown: dict[str, Any] = {
        section: {
            key: url_passwords_hidden(value)
            for key, value in cast("Mapping[str, Any]", keys).items()
        }
        for section, keys in tree.items()
    }
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
    """The URL of a database with (hidden) in place of all that may be a secret.

    Of one that is not well formed nothing but the scheme is shown: a password with a slash in it,
    for example, makes the end of it look like another part.
    """
    if not url:
        return ""
    found = _DATABASE.fullmatch(url)
    if found is None:
        return f"postgresql://{HIDDEN}"
    user = found["user"] or ""
    who = f"{user}:{HIDDEN}@" if found["password"] else f"{user}@" if user else ""
    pairs = (pair.split("=", 1) for pair in (found["query"] or "").split("&") if pair)
    query = "&".join(f"{name}={value if name in _HARMLESS else HIDDEN}" for name, value in pairs)
    return f"{found['scheme']}://{who}{found['place']}{'?' if query else ''}{query}"


def url_passwords_hidden(value: Any) -> Any:
    """A value of a configuration with (hidden) in place of passwords in its URLs."""
    if isinstance(value, str):
        return _IN_URL.sub(rf"\1:{HIDDEN}", value)
    if isinstance(value, list | tuple):
        return [url_passwords_hidden(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: url_passwords_hidden(each) for key, each in items}
    return value


def bare_url(url: str) -> str:
    """A URL without its user, password, query and fragment, however malformed it is."""
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
    """A name as `looks_secret` expects it: `apiKey` and `api-key` as `api_Key`, `api_key`.

    A header with a key is `Authorization`, which has none of the usual words.
    """
    usual = _OTHER_SPELLING.sub("_", name.strip())
    return "token" if usual.lower() == "authorization" else usual
