"""Logs: JSON lines in a server, readable lines on a terminal; secrets are masked."""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import TextIO

_KEY: Final = re.compile(r"oub_[A-Za-z0-9_]+?_[A-Za-z0-9_-]{16,}")
_SECRET_NAMES: Final = re.compile(r"(?i)(secret|password|api_?key|authorization|bearer)")


def mask(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace whatever looks like a key, and the values of fields that are named like one."""
    for name, value in event.items():
        if _SECRET_NAMES.search(name) and value:
            event[name] = "***"
        elif isinstance(value, str) and "oub_" in value:
            event[name] = _KEY.sub("oub_***", value)
    return event


def configure(stream: TextIO | None = None, *, level: str = "info", json: bool = False) -> None:
    """Send the logs of the whole process to `stream` (stderr), once, before anything starts."""
    target = sys.stderr if stream is None else stream
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=target.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            mask,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level.upper()),
        logger_factory=structlog.PrintLoggerFactory(file=target),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=target, level=logging.WARNING, force=True)
