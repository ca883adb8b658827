"""Log and state: one SQLite database, one writer, any number of readers."""

from __future__ import annotations

from oubliette.runtime.store import operations, queries
from oubliette.runtime.store.batch_commits import Request
from oubliette.runtime.store.database import MEMORY, Database
from oubliette.runtime.store.queries import LogSlice, Page
from oubliette.runtime.store.reader import Reader
from oubliette.runtime.store.writer import Writer

__all__ = (
    "MEMORY",
    "Database",
    "LogSlice",
    "Page",
    "Reader",
    "Request",
    "Writer",
    "operations",
    "queries",
)
