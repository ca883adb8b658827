"""Translation of the store's SQL, which is SQLite's, into PostgreSQL's.

The statements are ours and few, and the differences are listed here: parameters, hints that name
an index, and four spellings. A statement that differs in more has a text of its own.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_PARAMETER: Final = re.compile(r"\?(\d*)|(?<![:\w]):([a-z_]+)|%|'[^']*'")
_SPELLINGS: Final = (
    (re.compile(r" INDEXED BY \w+"), ""),
    (re.compile(r"\b(ORDER BY|WHERE) \+"), r"\1 "),
    (re.compile(r"\binstr\("), "strpos("),
    (re.compile(r" IS (\?\d*)"), r" IS NOT DISTINCT FROM \1"),
    (re.compile(r"\bBLOB\b"), "BYTEA"),
)


@cache
def translated(sql: str) -> str:
    """The statement with psycopg's placeholders.

    Numbered parameters become names (`p1`), so that one value can be used twice; see `bound`.
    """
    for pattern, replacement in _SPELLINGS:
        sql = pattern.sub(replacement, sql)

    def placeholder(match: re.Match[str]) -> str:
        whole, number, name = match[0], match[1], match[2]
        if whole == "%":
            return "%%"
        if whole.startswith("'"):
            return whole.replace("%", "%%")
        if name:
            return f"%({name})s"
        return f"%(p{number})s" if number else "%s"

    return _PARAMETER.sub(placeholder, sql)


@cache
def numbered(sql: str) -> bool:
    """Whether the statement's parameters are numbered (`?1`)."""
    return re.search(r"\?\d", sql) is not None
