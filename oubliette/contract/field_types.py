"""Types of parameters, whose bounds the schema has; other rules are checked after decoding.

`Meta(extra={"check": …})` names a check of `CHECKS`; `validation.decode` runs it on the decoded
value. Lengths count characters.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta

from oubliette import ids
from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Callable


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of parameters: unknown ones are refused by name."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of results."""


KIB: Final = 1024
MAX_PROMPT: Final = 1024 * KIB  # characters
MAX_TEXT: Final = 64 * KIB  # characters
MAX_SECONDS: Final = 10_000_000

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")
_REMOTE: Final = re.compile(
    r"(?:(?:https?|ssh|git)://[^\s\x00-\x1f]+|[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^\s\x00-\x1f]+)"
)
_PRINCIPAL: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}")


def check_line(value: str, field: str) -> str:
    """Return `value` if it has no control characters and is not blank.

    Raises:
        InvalidParameter: it would break a line, a log or a terminal.
    """
    if _CONTROL.search(value):
        raise InvalidParameter(
            f"{field}: must not contain control characters or line breaks", field=field
        )
    if not value.strip():
        raise InvalidParameter(f"{field}: must not be empty", field=field)
    return value


def check_storable(value: str, field: str) -> str:
    """Return `value` if it has no NUL, which PostgreSQL takes in no text.

    Raises:
        InvalidParameter: it has one.
    """
    if "\0" in value:
        raise InvalidParameter(f"{field}: must not contain the character NUL", field=field)
    return value


def _check_remote(value: str, field: str) -> str:
    # git runs programs for some kinds of URL (`ext::`) and takes a leading dash for an option.
    if _REMOTE.fullmatch(value) is None:
        # Not repeated where there may be a password in it.
        quoted = "" if "@" in value else f"{ids.shown(value)} "
        raise InvalidParameter(
            f"{field}: {quoted}must be an https, http, ssh or git URL or user@host:path",
            field=field,
        )
    return _check_without_secrets(value, field)


def _check_without_secrets(value: str, field: str) -> str:
    if "://" in value and not _is_without_secrets(value):
        raise InvalidParameter(
            f"{field}: must not contain a user name, a password or a query, as every key that sees"
            " the project reads it",
            field=field,
            hint="write https://host/path; repositories.credentials in the server's configuration"
            " has passwords",
        )
    return value


def _is_without_secrets(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a password with a slash, which seems to be a port then
    except ValueError:
        return False
    if parts.scheme == "file":
        return True
    if parts.query or parts.fragment or parts.password is not None:
        return False
    return parts.username is None or (parts.scheme == "ssh" and ":" not in unquote(parts.username))


def _check_principal(value: str, field: str) -> str:
    # A colon would let it pose as `session:<id>`.
    if _PRINCIPAL.fullmatch(value) is None:
        raise InvalidParameter(
            f"{field}: {ids.shown(value)} must be 1 to 128 of A-Z a-z 0-9 _ . @ + -", field=field
        )
    return value


def _check_inside(value: str, field: str) -> str:
    check_line(value, field)
    if not value.startswith("/") or ".." in value.split("/"):
        raise InvalidParameter(
            f"{field}: {ids.shown(value)} must be an absolute path without ..", field=field
        )
    return value


def _id(prefix: str) -> Callable[[str, str], str]:
    return lambda value, field: ids.check_id(value, prefix, field)


CHECKS: Final[dict[str, Callable[[str, str], Any]]] = {
    "line": check_line,
    "storable": check_storable,
    "inside": _check_inside,
    "project": _id(ids.PROJECT),
    "session": _id(ids.SESSION),
    "token": _id(ids.TOKEN),
    "exploration": _id(ids.EXPLORATION),
    "uuid": ids.check_uuid,
    "caller": ids.check_caller_id,
    "remote": _check_remote,
    "without_secrets": _check_without_secrets,
    "principal": _check_principal,
}

Line = Annotated[str, Meta(min_length=1, max_length=200, extra={"check": "line"})]
InsidePath = Annotated[str, Meta(min_length=1, max_length=1000, extra={"check": "inside"})]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Prompt = Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT)]
ProjectId = Annotated[str, Meta(max_length=200, extra={"check": "project"})]
SessionId = Annotated[str, Meta(max_length=200, extra={"check": "session"})]
AnyId = Annotated[str, Meta(max_length=MAX_TEXT)]
"""An id in any form: an invalid one gets the same answer as an unknown one."""
TokenId = Annotated[str, Meta(max_length=200, extra={"check": "token"})]
ExplorationId = Annotated[str, Meta(max_length=200, extra={"check": "exploration"})]
Uuid = Annotated[str, Meta(max_length=200, extra={"check": "uuid"})]
CallerId = Annotated[str, Meta(min_length=1, max_length=64, extra={"check": "caller"})]
Remote = Annotated[str, Meta(max_length=2048, extra={"check": "remote"})]
PrincipalId = Annotated[str, Meta(min_length=1, max_length=128, extra={"check": "principal"})]
Secret = Annotated[str, Meta(min_length=1, max_length=4096, extra={"check": "line"})]
IdempotencyText = Annotated[str, Meta(min_length=1, max_length=200, extra={"check": "line"})]
Cursor = Annotated[str, Meta(max_length=500, extra={"check": "storable"})]
PageSize = Annotated[int, Meta(ge=1, le=1000)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]
"""Duration in the configuration, where a text with a unit is converted to seconds."""
ParamSeconds = Annotated[float, Meta(gt=0, le=float(MAX_SECONDS))]
"""Duration among parameters: what is published of tools has its bound as a float."""
FORMS: Final = {
    "^[0-9a-f]{40}$": "the 40 hexadecimal digits that the refusal without it names",
    "^[A-Za-z0-9_-]+$": "letters, digits, _ and -",
    "^[a-z0-9][a-z0-9._-]*$": "small letters, digits, ., _ and -; the first a letter or digit",
    "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$": (
        "up to 64 letters, digits, _ and -; the first a letter or digit"
    ),
    "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$": (
        "up to 64 letters, digits, ., _ and -; the first a letter or digit"
    ),
}
"""Patterns of fields, in words."""
Discard = Annotated[
    Annotated[str, Meta(max_length=40, pattern="^[0-9a-f]{40}$")] | None,
    Meta(description="Consent to the loss of files that no snapshot has, as a refusal names it."),
]
