"""Make the image of a container type, or fetch it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.errors import InvalidParameter
from oubliette.runtime.containers import images, settings

if TYPE_CHECKING:
    from oubliette.config import Config
    from oubliette.runtime.containers.port import ContainerRuntime

FOLDER: Final = Path(images.__file__).parent
"""Where our Dockerfile lies."""
OURS: Final = "localhost/"
"""Names that no registry has: only those are built."""


class Imaging:
    """Images of container types on one runtime."""

    def __init__(self, runtime: ContainerRuntime, config: Config) -> None:
        self._runtime = runtime
        self._config = config

    def image_of(self, container_type: str) -> str:
        """The image's name.

        Raises:
            InvalidParameter: this runtime has no images.
        """
        if not self._runtime.capabilities.images:
            raise InvalidParameter(
                f"the {self._runtime.name} runtime has no images",
                field="container_type",
                hint='containers.runtime = "docker" or "podman" has',
            )
        return settings.image_of(self._config, container_type)

    async def rebuild(self, container_type: str) -> str:
        """Build it from our Dockerfile; the end of the build's output.

        Raises:
            InvalidParameter: its name is a registry's.
            RuntimeFailure: a step of the build failed.
        """
        image = self.image_of(container_type)
        if not image.startswith(OURS):
            raise InvalidParameter(
                f"container_type: {image} comes from a registry and is not built here",
                field="container_type",
                hint=f"container_refresh fetches it again; names that begin with {OURS} are built",
            )
        limit = self._config.containers.build_timeout_seconds
        return (await self._runtime.build(image, FOLDER, timeout=limit)).text

    async def refresh(self, container_type: str) -> bool:
        """Fetch it again; false where there is nothing to fetch from.

        Raises:
            RuntimeFailure: the registry has not got it, or does not answer.
        """
        image = self.image_of(container_type)
        if image.startswith(OURS):
            return False
        await self._runtime.pull(image, timeout=self._config.containers.pull_timeout_seconds)
        return True
