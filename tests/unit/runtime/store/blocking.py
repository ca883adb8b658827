"""Reads for tests and programs of tests that have no loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oubliette.runtime.store import Reader


def read(reader: Reader, query, *args, **options):
    return asyncio.run(reader.run(query, *args, **options))
