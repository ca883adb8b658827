"""Images of an engine: there or not, fetched, built."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import structlog

from oubliette.errors import DeadlineExceeded, RuntimeFailure
from oubliette.runtime.containers.engine import Missing
from oubliette.runtime.containers.port import Logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from oubliette.runtime.containers.engine import Engine

LOG_LINES: Final = 400  # of a build, kept for its log
SHOWN_EVERY: Final = 5.0  # seconds between two lines of progress in the server's log

log = structlog.get_logger(__name__)


def not_there(flavour: str, image: str) -> RuntimeFailure:
    """The error for an image that the engine has not got."""
    return RuntimeFailure(
        f"{flavour} has no image {image}",
        hint=f"{flavour} pull {image}, or build it with image_rebuild, or set containers.image",
    )


async def exists(engine: Engine, image: str) -> bool:
    """Whether the engine has `image`."""
    try:
        await engine.call("look for an image", _inspect, image)
    except Missing:
        return False
    return True


def _inspect(api: Any, image: str) -> Any:
    return api.inspect_image(image)


async def pull(engine: Engine, image: str, *, timeout: float) -> None:
    """Fetch `image`; how far it is goes to the log.

    Raises:
        RuntimeFailure: the registry has not got it, or does not answer; says what to do.
        DeadlineExceeded: not within `timeout` seconds.
    """
    repository, tag = parse(image)
    hint = (
        f"check the name, log in ({engine.flavour} login), or load the image yourself and set"
        " containers.image"
    )

    def act(api: Any) -> None:
        parts = api.pull(repository, tag=tag, stream=True, decode=True)
        _follow(parts, timeout, f"the pull of {image}")

    try:
        await _with_own_connection(engine, f"pull {image}", act, timeout)
    except DeadlineExceeded:
        raise
    except (RuntimeFailure, Missing) as error:
        message = f"the image {image} cannot be pulled: {error.message}"
        raise RuntimeFailure(message, hint=hint) from error


async def build(
    engine: Engine, image: str, folder: Path, *, timeout: float, arguments: Mapping[str, str]
) -> Logs:
    """Build the Dockerfile of `folder` as `image`; the end of its output.

    Raises:
        RuntimeFailure: a step failed; the message ends with the build's last lines.
        DeadlineExceeded: not within `timeout` seconds.
    """

    def act(api: Any) -> Logs:
        # No BuildKit: the SDK has none. What a failed build made is removed as well.
        parts = api.build(
            path=str(folder),
            tag=image,
            rm=True,
            forcerm=True,
            decode=True,
            buildargs=dict(arguments),
        )
        lines, more = _follow(parts, timeout, f"the build of {image}")
        return Logs(text="".join(lines), truncated=more)

    return await _with_own_connection(engine, f"build {image}", act, timeout)


async def _with_own_connection(
    engine: Engine, step: str, act: Callable[[Any], Any], timeout: float
) -> Any:
    """Long calls get a connection of their own, with a timeout of their own."""

    def run(_: Any) -> Any:
        api = engine.connect(timeout=timeout)
        try:
            return act(api)
        finally:
            with contextlib.suppress(Exception):
                api.close()

    return await asyncio.shield(asyncio.ensure_future(engine.call(step, run)))


def _follow(parts: Iterable[Any], timeout: float, what: str) -> tuple[list[str], bool]:
    """Read a stream of progress to its end; the last lines, and whether there were more.

    Raises:
        RuntimeFailure: the stream tells of an error.
    """
    deadline = time.monotonic() + timeout
    lines: deque[str] = deque(maxlen=LOG_LINES)
    count, shown = 0, time.monotonic()
    reason: str | None = None
    for part in parts:  # to the end, after an error too: the connection is not given back before
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"{what} took more than {timeout:g} s")
        if "error" in part:
            reason = reason or str(part["error"]).strip()
            continue
        text = str(part.get("stream") or "")
        if not text and "status" in part:
            text = " ".join(
                str(part[name]) for name in ("id", "status", "progress") if part.get(name)
            )
            text += "\n"
        if text:
            lines.append(text)
            count += 1
        if time.monotonic() - shown > SHOWN_EVERY:
            shown = time.monotonic()
            log.info("image", what=what, progress=text.strip()[:200])
    if reason is not None:
        said = "".join(list(lines)[-10:]).strip()
        raise RuntimeFailure(f"{reason}\n{said}" if said else reason)
    return list(lines), count > LOG_LINES


def parse(image: str) -> tuple[str, str]:
    """Name and tag (or digest); `latest` where none is given."""
    name, at, digest = image.partition("@")
    if at:
        return name, digest
    head, colon, tag = image.rpartition(":")
    if colon and "/" not in tag:
        return head, tag
    return image, "latest"
