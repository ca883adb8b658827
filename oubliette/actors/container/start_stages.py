"""Stages of a container's start: each is timed and reported, and named in its failure."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from oubliette.actors.container.memory_room import WAIT_SECONDS
from oubliette.actors.container.messages import StageChanged, StageName
from oubliette.actors.session.waits import ContainerStartProgress
from oubliette.errors import OublietteError, RuntimeFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oubliette.config.schema import ContainersConfig

PROGRESS_SECONDS: Final = 3.0  # seconds between two events of a pull's progress

_REMEDY: Final[dict[StageName, str]] = {
    "image": "oubliette doctor; containers.image and containers.dev_image name the images",
    "create": "oubliette doctor",
    "start": "container_logs and oubliette doctor tell more; containers.start_timeout_seconds is"
    " the time that it has",
    "relay": "start it again; containers.start_timeout_seconds is the time that it has",
}


def longest_start(config: ContainersConfig) -> float:
    """The seconds within which a start has ended, successful or not."""
    return config.pull_timeout_seconds + 3 * config.start_timeout_seconds + 10.0


_DOING: Final[dict[StageName, str]] = {
    "image": "the image of its container to be fetched",
    "create": "its container to be created",
    "start": "its container to start",
    "relay": "the relay in its container to answer",
}


def start_of(
    state: str, stages: StartStages | None, config: ContainersConfig, now: float
) -> ContainerStartProgress | None:
    """Return the progress of a container's start at `now` (wall seconds); None: no start."""
    if state == "stopping":
        return ContainerStartProgress(what="the container before it to be removed")
    if state not in {"starting", "relay"} or stages is None or stages.current is None:
        return None
    since = now - stages.elapsed
    image = stages.current == "image"
    limit = config.pull_timeout_seconds if image else config.start_timeout_seconds
    return ContainerStartProgress(
        what=_DOING[stages.current], since=since, until=since + limit, detail=stages.detail
    )


def adoption_of(runtime: str, failing_since: float | None) -> ContainerStartProgress:
    """The progress of an adoption while the engine of `runtime` does not answer."""
    return ContainerStartProgress(
        what=f"{runtime} to tell which containers there are",
        since=failing_since,
        detail="it is asked again and again; oubliette doctor says what is wrong",
    )


class StageFailed(RuntimeFailure):
    """A stage of a container's start failed."""

    code = "container_start"

    def __init__(self, stage: StageName, message: str, *, hint: str) -> None:
        super().__init__(f"the container could not be started ({stage}): {message}", hint=hint)
        self.stage: StageName = stage


class StartStages:
    """The stages of one start, in the order in which they ran.

    Args:
        send: called for each stage that ends, and for progress.
        container_id: the container, once there is one.
        warnings: warnings that a user should see at every start.
    """

    def __init__(
        self,
        send: Callable[[StageChanged], object],
        container_id: str = "",
        warnings: tuple[str, ...] = (),
    ) -> None:
        self._send = send
        self._container_id = container_id
        self._warnings = warnings
        self._began = self._reported = 0.0
        self.current: StageName | None = None
        """The running stage."""
        self.detail: str | None = None
        """Its progress."""
        self._held: asyncio.TimerHandle | None = None
        """Timer that reports progress which was held back, as the next may be long in coming."""
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, name: StageName) -> Generator[None]:
        """Time and report one stage.

        Raises:
            StageFailed: the block failed; the error names the remedy.
        """
        self._began = time.monotonic()
        self.current = name
        try:
            yield
        except (OublietteError, OSError) as error:  # of the deadline too: it is an OSError
            raise self._failed(name, error) from error
        finally:
            self._drop_held()
            self.current = self.detail = None
        self.seconds[name] = time.monotonic() - self._began
        self._report(name, "done", warnings=self._warnings)

    def progress(self, name: StageName, detail: str) -> None:
        """Report the progress of the running stage, every few seconds."""
        self._drop_held()
        self.detail = detail
        wait = self._reported + PROGRESS_SECONDS - time.monotonic() if self._reported else 0.0
        if wait > 0:
            self._held = asyncio.get_running_loop().call_later(wait, self.progress, name, detail)
            return
        self._reported = time.monotonic()
        self._report(name, "progress", detail=detail)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def _drop_held(self) -> None:
        if self._held is not None:
            self._held.cancel()
            self._held = None

    def _report(
        self, name: StageName, state: Literal["progress", "done", "failed"], **more: Any
    ) -> None:
        elapsed = round((time.monotonic() - self._began) * 1000)
        self._send(
            StageChanged(
                stage=name,
                state=state,
                elapsed_ms=elapsed,
                container_id=self._container_id,
                **more,
            )
        )

    def _failed(self, name: StageName, error: Exception) -> StageFailed:
        self.seconds[name] = time.monotonic() - self._began
        said = error.message if isinstance(error, OublietteError) else str(error)
        if isinstance(error, TimeoutError) and not said:
            said = f"not done after {time.monotonic() - self._began:.0f} s"
        hint = error.hint if isinstance(error, OublietteError) else None
        failed = StageFailed(name, said or repr(error), hint=hint or _REMEDY[name])
        self._report(name, "failed", error=said or repr(error), remedy=failed.hint or "")
        return failed


def memory_of(began: float) -> ContainerStartProgress:
    """The wait of an agent, since wall second `began`, for memory in its container."""
    return ContainerStartProgress(
        kind="place",
        what="memory in its container, for other agents there to end",
        since=began,
        until=began + WAIT_SECONDS,
        detail="containers.memory_mb is what they have together, agents.memory what one needs",
    )


def link_of(why_lost: str | None) -> ContainerStartProgress:
    """The wait for the link into a container that is not about to start."""
    return ContainerStartProgress(what="the link into its container", detail=why_lost)
