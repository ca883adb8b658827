"""The stages of a container's start: each is timed, told, and names itself when it fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from oubliette.actors.container.messages import StageChanged, StageName
from oubliette.actors.session.waits import ContainerStartProgress
from oubliette.errors import OublietteError, RuntimeFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oubliette.config.schema import ContainersConfig

TOLD_EVERY: Final = 3.0  # seconds between two events of a pull's progress

_REMEDY: Final[dict[StageName, str]] = {
    "image": "oubliette doctor; containers.image and containers.dev_image name the images",
    "create": "oubliette doctor",
    "start": "container_logs and oubliette doctor tell more; containers.start_timeout_seconds is"
    " the time that it has",
    "relay": "start it again; containers.start_timeout_seconds is the time that it has",
}


def longest_start(config: ContainersConfig) -> float:
    """Seconds within which a start has come to its end, one way or the other."""
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
    """What the start of a container waits for; `now` in wall seconds. None: nothing."""
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
    """What a container waits for of which the engine, `runtime`, tells nothing."""
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
        tell: is told of each that ends, and of progress.
        container_id: the container, once there is one.
        warnings: what a user should hear at every start.
    """

    def __init__(
        self,
        tell: Callable[[StageChanged], object],
        container_id: str = "",
        warnings: tuple[str, ...] = (),
    ) -> None:
        self._tell = tell
        self._container_id = container_id
        self._warnings = warnings
        self._began = self._told = 0.0
        self.current: StageName | None = None
        """The stage that runs now."""
        self.detail: str | None = None
        """How far it is."""
        self._held: asyncio.TimerHandle | None = None
        """Tells the last progress when it may be told: afterwards there may be none for long."""
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, name: StageName) -> Generator[None]:
        """One stage.

        Raises:
            StageFailed: what is in the block failed; says how to mend it.
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
        self._say(name, "done", warnings=self._warnings)

    def progress(self, name: StageName, detail: str) -> None:
        """Tell how far the stage is that runs now, every few seconds."""
        self._drop_held()
        self.detail = detail
        wait = self._told + TOLD_EVERY - time.monotonic() if self._told else 0.0
        if wait > 0:
            self._held = asyncio.get_running_loop().call_later(wait, self.progress, name, detail)
            return
        self._told = time.monotonic()
        self._say(name, "progress", detail=detail)

    @property
    def elapsed(self) -> float:
        """Seconds since the stage that runs now began."""
        return time.monotonic() - self._began

    def _drop_held(self) -> None:
        if self._held is not None:
            self._held.cancel()
            self._held = None

    def _say(
        self, name: StageName, state: Literal["progress", "done", "failed"], **more: Any
    ) -> None:
        elapsed = round((time.monotonic() - self._began) * 1000)
        self._tell(
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
        self._say(name, "failed", error=said or repr(error), remedy=failed.hint or "")
        return failed
