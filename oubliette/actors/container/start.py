"""Start of a container: image, record, engine, and the proof of its guest, stage by stage."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette import ids
from oubliette.actors.container.guest_connection import no_answer
from oubliette.actors.container.jobs import ContainerStarted, Relayed
from oubliette.actors.container.start_stages import StartStages
from oubliette.actors.store.actor import Transact
from oubliette.actors.store.outages import once_back
from oubliette.errors import ContainerLost
from oubliette.failpoints import failpoint
from oubliette.records import Container
from oubliette.runtime.containers.base import LABEL_SPEC
from oubliette.runtime.store.operations import PutContainer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from oubliette.actors.container.messages import StageChanged
    from oubliette.actors.container.removal import ContainerRemoval
    from oubliette.actors.container.spec_builder import ContainerSpecBuilder
    from oubliette.actors.context import ActorContext
    from oubliette.runtime.containers.base import ContainerInfo

IMAGE_SLACK: Final = 5.0  # seconds beyond the deadline of a pull, for the request to the engine


class ContainerStarter:
    """Starts of the containers of one ContainerActor, one after another.

    Args:
        context: ports of the server.
        spec_builder: the spec of a container, and what it belongs to.
        removal: undoes half a start.
        send: called for each stage that ends, and for progress, while a job runs.
    """

    def __init__(
        self,
        context: ActorContext,
        spec_builder: ContainerSpecBuilder,
        removal: ContainerRemoval,
        send: Callable[[StageChanged], object],
    ) -> None:
        self._context = context
        self._spec_builder = spec_builder
        self._removal = removal
        self._send = send
        self._proof: asyncio.Future[str | None] | None = None
        """Set when the guest has proved its identity; its result is the error if it never will."""
        self.stages: StartStages | None = None
        """Stages of the current start, or of the last one."""

    async def run(self) -> ContainerStarted:
        """A container that the engine has started.

        Raises:
            StageFailed: a stage failed; nothing is left of the container.
        """
        self.stages = stages = StartStages(self._send)
        container_id = ids.new_id(ids.CONTAINER)
        limits = self._context.config.containers
        with stages.stage("image"):
            # The pull has this deadline itself, with a more detailed error.
            async with asyncio.timeout(limits.pull_timeout_seconds + IMAGE_SLACK):
                await self._fetch_image(stages)
        key = secrets.token_bytes(32)
        try:
            with stages.stage("create"):
                async with asyncio.timeout(limits.start_timeout_seconds):
                    record = await self._create(container_id, key)
            with stages.stage("start"):
                async with asyncio.timeout(limits.start_timeout_seconds):
                    info = await self._context.runtime.start(
                        container_id, key=key, timeout=limits.start_timeout_seconds
                    )
        except BaseException:
            await self._removal.undo(container_id)
            raise
        failpoint("container.started")
        record = msgspec.structs.replace(record, state="running", handle=info.handle)
        await self._store(record)
        return ContainerStarted(record=record, info=info, seconds=stages.seconds)

    async def _fetch_image(self, stages: StartStages) -> None:
        image, runtime = self._spec_builder.image, self._context.runtime
        if image is None or await runtime.image_exists(image):
            return
        stages.progress("image", f"fetching {image}")
        await runtime.pull(
            image,
            timeout=self._context.config.containers.pull_timeout_seconds,
            progress=lambda line: stages.progress("image", line),
        )

    async def _create(self, container_id: str, key: bytes) -> Container:
        """Create it in the engine; its record is stored first, so that it is never unknown."""
        context, builder = self._context, self._spec_builder
        spec = await asyncio.to_thread(builder.spec, container_id)
        record = Container(
            id=container_id,
            project_id=builder.project.id,
            workspace_id=builder.key.workspace_id,
            container_type=builder.key.container_type,
            runtime=context.runtime.name,
            state="creating",
            created_at=context.clock.time(),
            spec_hash=spec.labels[LABEL_SPEC],
            host_key=key,
            folder=str(spec.runtime_dir),
        )
        await self._store(record)
        failpoint("container.created")
        await context.runtime.create(spec)
        return record

    async def _store(self, record: Container) -> None:
        op = PutContainer(record)
        await once_back(lambda: self._context.store.ask(Transact(ops=(op,))))

    def wait_for_guest(
        self, info: ContainerInfo, seconds: dict[str, float]
    ) -> Coroutine[None, None, Relayed]:
        """The job of the last stage: its guest proves its identity, see `proved`.

        Args:
            info: the container, which the engine has started.
            seconds: of the stages before.
        """
        self.stages = stages = StartStages(self._send, info.id, info.warnings)
        stages.seconds = seconds
        self._proof = asyncio.get_running_loop().create_future()
        return self._relay(info.id, stages, self._proof)

    async def _relay(
        self, container_id: str, stages: StartStages, proof: asyncio.Future[str | None]
    ) -> Relayed:
        limit = self._context.config.containers.start_timeout_seconds
        with stages.stage("relay"):
            try:
                async with asyncio.timeout(limit):
                    why_not = await proof
            except TimeoutError:
                raise no_answer(limit) from None
            if why_not is not None:
                raise ContainerLost(why_not)
        return Relayed(container_id=container_id, seconds=stages.seconds)

    def proved(self, why_not: str | None = None) -> None:
        """Record that the guest has proved its identity, or why it never will."""
        if self._proof is not None and not self._proof.done():
            self._proof.set_result(why_not)
