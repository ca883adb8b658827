"""Build and refresh of the images of container types."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.errors import ConfigError, Conflict, InvalidParameter, Unavailable
from oubliette.runtime.containers import dockerfile, registry
from oubliette.runtime.containers import options as container_options
from oubliette.user_paths import expanded

if TYPE_CHECKING:
    from oubliette.config.container_options import ContainerOptions
    from oubliette.config.schema import Config
    from oubliette.records import Project
    from oubliette.runtime.containers.base import ContainerRuntime, Progress

FOLDER: Final = Path(dockerfile.__file__).parent
"""Folder of our Dockerfile."""
OURS: Final = "localhost/"
"""Names that no registry has: those are built, not pulled."""


class Imaging:
    """Images of container types on one runtime."""

    def __init__(self, runtime: ContainerRuntime, config: Config) -> None:
        self._runtime = runtime
        self._config = config

    def image_of(self, container_type: str, project: Project | None = None) -> str:
        """The image's name, of a type or of a project of that type.

        Raises:
            InvalidParameter: this runtime does not use images.
        """
        return self._options(container_type, project).image

    def check_commits(self, project: Project) -> None:
        """Check that an image can be made of a project's container, and would have something.

        Raises:
            Unavailable: this runtime does not make images of containers.
            Conflict: the file systems of the project's containers are read-only.
        """
        if not self._runtime.capabilities.commits:
            raise Unavailable(
                f"the {self._runtime.name} runtime makes no images of containers",
                hint='containers.runtime = "docker" or "podman" does',
            )
        if self._options(project.container_type or "base", project).read_only:
            raise Conflict(
                "nothing can be installed in this project's containers: their image is read-only",
                hint=f"set read_only = false in [project_containers.{project.id}], or in"
                " [containers] for all",
            )

    def memory_mb(self, project: Project) -> int | None:
        """Return the memory limit of a project's containers; None: no limit, or no engine."""
        if not self._runtime.capabilities.images:
            return None
        return self._options(project.container_type or "base", project).memory_mb

    def _options(self, container_type: str, project: Project | None) -> ContainerOptions:
        if not self._runtime.capabilities.images:
            having = [f'"{name}"' for name, spec in registry.BUILT_IN.items() if spec.images]
            raise InvalidParameter(
                f"the {self._runtime.name} runtime has no images",
                field="container_type",
                hint=f"containers.runtime = {', '.join(having[:-1])} or {having[-1]} has",
            )
        return container_options.options_of(self._config, container_type, project)

    async def rebuild(self, container_type: str, progress: Progress | None = None) -> str:
        """Build it from its type's Dockerfile, or from ours; return the end of the build's output.

        `progress` gets the engine's progress.

        Raises:
            InvalidParameter: the name is a registry's, and the type has no Dockerfile.
            ConfigError: the type's folder has no Dockerfile.
            BuildFailed: a step of the build failed.
        """
        options = self._options(container_type, None)
        folder = _folder(options)
        if options.build_dir is None and not options.image.startswith(OURS):
            raise InvalidParameter(
                f"container_type: {options.image} comes from a registry and is not built here",
                field="container_type",
                hint="container_refresh fetches it again; built are images of types with build_dir,"
                f" and names that begin with {OURS}",
            )
        if not (folder / "Dockerfile").is_file():
            raise ConfigError(
                f"there is no Dockerfile in {folder}",
                hint=f"container_types.{container_type}.build_dir names the folder",
            )
        built = await self._runtime.build(
            options.image,
            folder,
            timeout=self._config.containers.build_timeout_seconds,
            arguments=dict(_pair(argument) for argument in options.build_args),
            progress=progress,
        )
        return built.text

    async def refresh(
        self,
        container_type: str,
        project: Project | None = None,
        progress: Progress | None = None,
    ) -> str | None:
        """Pull it again; return the outcome, None if it has no registry.

        `progress` gets the engine's progress.

        Raises:
            ImageError: the registry lacks it, or does not answer.
        """
        options = self._options(container_type, project)
        if options.build_dir is not None or options.image.startswith(OURS):
            return None
        lines: list[str] = []

        def report(line: str) -> None:
            lines.append(line)
            if progress is not None:
                progress(line)

        await self._runtime.pull(
            options.image,
            timeout=self._config.containers.pull_timeout_seconds,
            progress=report,
        )
        return "".join(f"{line}\n" for line in lines)


def built_from(options: ContainerOptions) -> str | None:
    """Return the folder that the image is built from; None: it is pulled from a registry."""
    ours = options.build_dir is not None or options.image.startswith(OURS)
    return str(_folder(options)) if ours else None


def _folder(options: ContainerOptions) -> Path:
    return (
        FOLDER if options.build_dir is None else expanded(options.build_dir, "containers.build_dir")
    )


def _pair(argument: str) -> tuple[str, str]:
    name, _, value = argument.partition("=")
    return name, value
