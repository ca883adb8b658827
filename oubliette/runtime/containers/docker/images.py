"""Images of an engine: inspection, pull and build."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import structlog

from oubliette.errors import InvalidParameter, OublietteError, RuntimeFailure
from oubliette.runtime.containers import engine_errors
from oubliette.runtime.containers.base import ImageInfo, Logs
from oubliette.runtime.containers.docker.client import EngineNotFound, EngineRefused, sdk
from oubliette.runtime.containers.docker.image_progress import ImageProgress
from oubliette.runtime.containers.docker.progress_stream import work

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from oubliette.runtime.containers.base import Progress
    from oubliette.runtime.containers.docker.client import Engine

LOG_LINES: Final = 400  # of a build, kept for its log
REPORT_SECONDS: Final = 1.0  # seconds between two lines of progress, at least

log = structlog.get_logger(__name__)


def not_there(flavour: str, image: str) -> RuntimeFailure:
    return engine_errors.ImageNotFound(
        f"{flavour} has no image {image}",
        hint=f"{flavour} pull {image}, or build it with image_rebuild, or set containers.image",
    )


async def look(engine: Engine, image: str) -> ImageInfo | None:
    """Return the engine's details of `image`; None if it is missing."""
    try:
        reply = await engine.call("look for an image", _inspect, image)
    except EngineNotFound:
        return None
    size = reply.get("Size")
    metadata = cast("dict[str, Any]", reply.get("Metadata") or {})
    return ImageInfo(
        id=str(reply.get("Id", "")),
        size_bytes=size if isinstance(size, int) and size >= 0 else None,
        built_at=_timestamp(reply.get("Created")),
        arrived_at=_timestamp(metadata.get("LastTagTime")),
    )


def _inspect(api: Any, image: str) -> dict[str, Any]:
    return api.inspect_image(image)


def _timestamp(reply: object) -> float | None:
    """Parse a date of the engine; an unknown one has the year 1."""
    with contextlib.suppress(ValueError, OverflowError):
        seconds = datetime.fromisoformat(str(reply)).timestamp()
        return seconds if seconds > 0 else None
    return None


async def pull(
    engine: Engine, image: str, *, timeout: float, progress: Progress | None = None
) -> None:
    """Pull `image`; progress goes to the log and to `progress`.

    Raises:
        ImageError: the registry lacks it, or does not answer; the message has a remedy.
        PullTimeout: not within `timeout` seconds; the engine has stopped.
        EngineMissing: the engine does not answer.
    """
    repository, tag = parse(image)
    reports = _Progress(f"the pull of {image}", progress)
    try:
        async with asyncio.timeout(timeout):
            headers = await engine.call("read the logins", _login, repository)
            query = {"fromImage": repository, "tag": tag}
            await reports.follow(work(engine, "/images/create", query, headers=headers))
    except TimeoutError as error:
        raise engine_errors.pull_timeout(
            engine.flavour, image, timeout, reports.progress.line
        ) from error
    except (EngineRefused, EngineNotFound) as error:
        raise engine_errors.pull_failed(engine.flavour, image, error.message) from error


def _login(api: Any, repository: str) -> dict[str, str]:
    """The credentials that `login` has stored for the registry of `repository`."""
    auth: Any = sdk().auth
    registry, _ = auth.resolve_repository_name(repository)
    header = auth.get_config_header(api, registry)
    if not header:
        return {}
    return {"X-Registry-Auth": header.decode() if isinstance(header, bytes) else str(header)}


async def build(
    engine: Engine,
    image: str,
    folder: Path,
    *,
    timeout: float,
    arguments: Mapping[str, str],
    progress: Progress | None = None,
) -> Logs:
    """Build the Dockerfile of `folder` as `image`; return the end of its output.

    Raises:
        InvalidParameter: the folder has no Dockerfile.
        BuildFailed: a step failed; the message ends with the build's last lines. Only the layers
            that the next build begins with are kept.
        BuildTimeout: not within `timeout` seconds; the engine has stopped.
        EngineMissing: the engine does not answer.
    """
    reports = _Progress(f"the build of {image}", progress)
    # No BuildKit: it needs another protocol. Results of a failed build are removed as well.
    query = {"t": image, "rm": "1", "forcerm": "1", "buildargs": json.dumps(dict(arguments))}
    try:
        async with asyncio.timeout(timeout):
            context = await asyncio.to_thread(_context, folder)
            with contextlib.closing(context):
                headers = {"Content-Type": "application/x-tar"}
                await reports.follow(work(engine, "/build", query, headers=headers, body=context))
    except TimeoutError as error:
        raise engine_errors.build_timeout(image, timeout, reports.tail(5)) from error
    except (EngineRefused, EngineNotFound) as error:
        raise engine_errors.build_failed(image, error.message, reports.tail(20)) from error
    return Logs(text=reports.tail(LOG_LINES), truncated=reports.count > LOG_LINES)


async def drop_replaced(engine: Engine, image_id: str) -> None:
    """Remove an image that a build has replaced, unless it has a name or a container uses it."""

    def remove(api: Any) -> None:
        if not api.inspect_image(image_id).get("RepoTags"):
            api.remove_image(image_id)

    try:
        await engine.call("remove_image", remove)
    except OublietteError as error:  # the engine refuses while it is used
        log.info("a replaced image is left", image=image_id, reason=error.message)


def _context(folder: Path) -> BinaryIO:
    """A tar of the folder, without files named by its `.dockerignore`."""
    utils: Any = sdk().utils
    if not (folder / "Dockerfile").is_file():
        raise InvalidParameter(f"there is no Dockerfile in {folder}", field="folder")
    left_out: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        lines = (folder / ".dockerignore").read_text(encoding="utf-8").splitlines()
        left_out = [line.strip() for line in lines if line.strip()[:1] not in {"", "#"}]
    return utils.tar(os.fspath(folder), exclude=left_out, dockerfile=("Dockerfile", None))


class _Progress:
    """Progress of a long call, from the parts of its stream."""

    def __init__(self, what: str, progress: Progress | None) -> None:
        self.count = 0
        self.progress = ImageProgress()
        self._what = what
        self._listener = progress
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._reported = ""
        self._again: asyncio.TimerHandle | None = None

    def _report(self) -> None:
        """Report the progress if it changed; the next report follows a little later."""
        line = self.progress.line
        self._again = None
        if line and line != self._reported:
            self._reported = line
            log.info("image", what=self._what, progress=line)
            if self._listener is not None:
                self._listener(line)
            self._again = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._report)

    def tail(self, lines: int) -> str:
        return "".join(list(self._lines)[-lines:])

    async def follow(self, parts: AsyncGenerator[dict[str, Any]]) -> None:
        """Read the stream to its end.

        Raises:
            EngineRefused: the stream reports an error.
        """
        reason: str | None = None
        try:
            async with contextlib.aclosing(parts):
                async for part in parts:
                    if "error" in part:
                        reason = reason or str(part["error"]).strip()
                    else:
                        self._read(part)
            if reason is not None:
                raise EngineRefused(reason)
            self._report()
        finally:
            if self._again is not None:
                self._again.cancel()

    def _read(self, part: dict[str, Any]) -> None:
        text = str(part.get("stream") or "")
        if not text and "status" in part:
            words = (str(part[name]) for name in ("id", "status", "progress") if part.get(name))
            text = " ".join(words) + "\n"
        if text:
            self._lines.append(text)
            self.count += 1
        self.progress.feed(part)
        if self._again is None:
            self._report()


def parse(image: str) -> tuple[str, str]:
    """Return name and tag (or digest); `latest` if there is none."""
    name, at, digest = image.partition("@")
    if at:
        return name, digest
    head, colon, tag = image.rpartition(":")
    if colon and "/" not in tag:
        return head, tag
    return image, "latest"
