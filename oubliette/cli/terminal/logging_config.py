"""Logging of the command line: on stderr, with secrets redacted."""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any, cast

import structlog

from oubliette.cli.terminal.log_stream import LogStream
from oubliette.cli.terminal.output import clean, coloured, escaped

if TYPE_CHECKING:
    from typing import TextIO

    from structlog.typing import EventDict, WrappedLogger

_KEY = re.compile(r"oub_(tok_[0-9a-z]{26})_[A-Za-z0-9_-]{8,}")
_OF_LINES = frozenset({"exception", "stack"})
_NAMES = frozenset(
    {"api_key", "authorization", "key", "pairing_secret", "password", "secret", "token"}
)


def configure(level: str = "info", *, as_json: bool) -> None:
    """Send structlog and the standard library's logging to stderr, from `level` on."""
    stream = LogStream(sys.stderr)
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        # Never rich's tracebacks: they show local variables, and keys among them.
        else structlog.dev.ConsoleRenderer(
            colors=coloured(sys.stderr), exception_formatter=structlog.dev.plain_traceback
        )
    )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rest: list[Any] = [structlog.processors.format_exc_info]  # before secrets are redacted
    last: list[Any] = [black_out, renderer] if as_json else [black_out, shown_safely, renderer]
    structlog.configure(
        processors=[*shared, *rest, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", stream)),
        cache_logger_on_first_use=True,  # else each call of a logger builds another one
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *rest,
                *last,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.INFO))
    for name in ("uvicorn.access", "mcp", "httpx"):
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def black_out(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace secrets of keys anywhere, and values of fields that name one."""
    return {
        name: "***" if name.lower() in _NAMES and value is not None else _black(value)
        for name, value in event.items()
    }


def shown_safely(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape control characters, which agents and clients may have put into a text.

    In tracebacks and stacks line breaks stay.
    """
    return {
        name: value
        if not isinstance(value, str)
        else clean(value)
        if name in _OF_LINES
        else escaped(value)
        for name, value in event.items()
    }


def _black(value: Any) -> Any:
    if isinstance(value, str):
        return _KEY.sub(r"oub_\1_***", value)
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {key: "***" if str(key).lower() in _NAMES else _black(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_black(item) for item in cast("list[Any]", value)]
    return value
