"""Connecting to a database, with errors that have no part of its URL in them.

Those of the driver quote the URL: of one with a slash in its password, for example, a part of the
password as the name of a port or of a database.
"""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg

_REASONS: Final = (
    ("refused", "the connection is refused: nothing listens there"),
    ("no such file", "nothing listens on that socket"),
    ("timeout|timed out", "no answer in time"),
    ("resolve|translate host|not known|no address", "its host is not known"),
    ("password authentication failed", "the user or the password is wrong"),
    ("no password supplied", "it asks for a password, and none is given"),
    ("pg_hba", "its pg_hba.conf lets no such connection in"),
    ('database ".*" does not exist', "there is no database of that name"),
    ('role ".*" does not exist', "there is no user of that name"),
    ("starting up|shutting down|recovery", "it starts or stops"),
    ("too many (clients|connections)|connection slots", "it has too many connections"),
    ("ssl|certificate", "encryption: look at sslmode and the certificates"),
    ("unreachable|no route", "no network leads there"),
    ("closed|reset|terminated|lost", "the connection was closed"),
    ("read-only", "it only reads"),
)
"""Pattern in the driver's message → reason."""


def connect(url: str, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection in autocommit mode.

    Args:
        url: Of the database, or a connection string of libpq.
        options: Of libpq.

    Raises:
        psycopg.OperationalError: the server does not answer or refuses.
        psycopg.ProgrammingError: the URL is malformed.
    """
    try:
        return psycopg.connect(url, autocommit=True, **options)
    except psycopg.OperationalError as error:
        raise psycopg.OperationalError(_reason(error)) from None
    except (psycopg.ProgrammingError, ValueError):
        raise psycopg.ProgrammingError("it is no URL of a database") from None


def _reason(error: psycopg.OperationalError) -> str:
    text = str(error)
    for pattern, reason in _REASONS:
        if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return reason
    return f"the driver refuses it ({error.sqlstate or type(error).__name__})"
