"""Calls of Apple's `container` for its services, images and networks.

Each method is one call of the program, and the parsing of its answer.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from oubliette.errors import DeadlineExceeded, InvalidParameter, OublietteError, RuntimeFailure
from oubliette.runtime.containers.apple import argv as apple_argv
from oubliette.runtime.containers.apple import cli as apple_cli
from oubliette.runtime.containers.apple import output
from oubliette.runtime.containers.base import ImageInfo, Logs, RuntimeStatus
from oubliette.runtime.containers.engine_errors import EngineMissing, EngineNotFound

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oubliette.runtime.containers.apple.cli import AppleCli
    from oubliette.runtime.containers.apple.output import Seen

OLDEST: Final = (1, 0)
PING_SECONDS: Final = 15.0
LOG_BYTES: Final = 1 << 20
BUILD_LOG_BYTES: Final = 64 << 10


class AppleServices:
    """Client of the services behind the program."""

    def __init__(self, cli: AppleCli) -> None:
        self._cli = cli

    async def status(self) -> RuntimeStatus:
        """Return its release, and whether its services run.

        Raises:
            EngineMissing: the program is missing.
            DeadlineExceeded: the program does not answer.
        """
        asked = ["system", "version", "--format", "json"]
        done = await self._cli.attempt(asked, timeout=PING_SECONDS)
        reply = output.versions(done.out) if done.code == 0 else []
        if not reply:  # the first releases had no such command
            done = await self._cli.attempt(["--version"], timeout=PING_SECONDS)
            reply = [done.out.decode("utf-8", "replace")]
        version = re.search(r"(\d+)\.(\d+)(\.\d+)?", reply[0])
        if version is None:
            return RuntimeStatus(
                ok=False,
                reason=f"{self._cli.program()} does not say its version:"
                f" it says {done.error_text!r}",
                remedy=apple_cli.INSTALL,
            )
        if (int(version[1]), int(version[2])) < OLDEST:
            return RuntimeStatus(
                ok=False,
                version=version[0],
                reason=f"container {version[0]} is too old: 1.0 or later is needed",
                remedy=apple_cli.INSTALL,
            )
        asked = ["system", "status", "--format", "json"]
        done = await self._cli.attempt(asked, timeout=PING_SECONDS)
        state = output.service_state(done.out)
        if done.code != 0 or state != "running":
            return RuntimeStatus(
                ok=False,
                version=version[0],
                reason=f"the services of container do not run ({state})",
                remedy=apple_cli.START,
            )
        return RuntimeStatus(ok=True, version=version[0])

    async def image(self, image: str) -> ImageInfo | None:
        """Return its details; None if it is not present without a pull."""
        try:
            reply = await self._cli.call("look for an image", ["image", "inspect", image])
        except EngineNotFound:
            return None
        return output.image(reply)

    async def pull(self, image: str, *, timeout: float) -> None:
        """Pull it from its registry.

        Raises:
            RuntimeFailure: the registry lacks it, or does not answer; the message has a remedy.
            DeadlineExceeded: not within `timeout` seconds.
        """
        argv = ["image", "pull", "--progress", "none", image]
        try:
            await self._cli.call(f"pull {image}", argv, timeout=timeout)
        except DeadlineExceeded:
            raise
        except (RuntimeFailure, EngineNotFound) as error:
            raise RuntimeFailure(
                f"the image {image} cannot be pulled: {error.message}",
                hint="check the name, log in (container registry login), or load the image"
                " yourself and set containers.image",
            ) from error

    async def build(
        self,
        image: str,
        folder: Path,
        *,
        timeout: float,
        arguments: Mapping[str, str],
    ) -> Logs:
        """Build the folder's Dockerfile; `arguments` are its build arguments.

        Raises:
            RuntimeFailure: a step failed; the message ends with the build's last lines.
            DeadlineExceeded: not within `timeout` seconds.
        """
        argv = apple_argv.build(image, folder, arguments)
        done = await self._cli.attempt(argv, timeout=timeout)
        if done.code != 0:
            raise apple_cli.explained(f"build {image}", done)
        text = (done.err + done.out).decode("utf-8", "replace")  # the progress is on the former
        return Logs(text=text[-BUILD_LOG_BYTES:], truncated=len(text) > BUILD_LOG_BYTES)

    async def check_image(self, image: str) -> None:
        """Refuse a missing image.

        Raises:
            RuntimeFailure: the image is missing; the message has a remedy.
        """
        # `create` would pull it, without progress and without a deadline of its own.
        if await self.image(image) is None:
            raise RuntimeFailure(
                f"apple has no image {image}",
                hint=f"container image pull {image}, or build it with image_rebuild, or set"
                " containers.image",
            )

    async def check_network(self, network: str) -> None:
        """Refuse a network that a virtual machine cannot have.

        Raises:
            InvalidParameter: the network is not supported; names the field.
        """
        if network == "host":
            raise InvalidParameter(
                "network: apple containers are machines of their own, they cannot share ours",
                field="network",
                hint="none, bridge, or a network of `container network list`",
            )
        if network in {"none", "bridge"}:
            return
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", network):
            with contextlib.suppress(EngineNotFound):
                await self._cli.call("look for a network", ["network", "inspect", network])
                return
        raise InvalidParameter(
            f"network: apple has no network {network}",
            field="network",
            hint=f"container network create {network}",
        )

    async def delete(self, name: str) -> None:
        """Remove a container, running or not; a missing one is ignored."""
        try:
            await self._cli.call("remove a container", ["delete", "--force", name])
        except EngineNotFound:
            return
        except EngineMissing:
            raise
        except OublietteError:
            if any(seen.id == name for seen in await self.list_all()):
                raise

    async def list_all(self) -> list[Seen]:
        """All containers, including those of other programs."""
        argv = ["list", "--all", "--format", "json"]
        return output.containers(await self._cli.call("list containers", argv))

    async def look(self, name: str) -> Seen | None:
        """Return one container; None if it is missing."""
        try:
            reply = await self._cli.call("look at a container", ["inspect", name])
        except EngineNotFound:
            return None
        return next((each for each in output.containers(reply) if each.id == name), None)

    async def logs(self, name: str, tail: int) -> Logs:
        """The last lines of its first process's output, at most `LOG_BYTES`."""
        if tail <= 0:
            return Logs(text="")
        raw = await self._cli.call("read the logs", ["logs", "-n", str(tail + 1), name])
        lines = raw.decode("utf-8", "replace").splitlines(keepends=True)
        text = "".join(lines[-tail:])
        return Logs(text=text[-LOG_BYTES:], truncated=len(lines) > tail or len(text) > LOG_BYTES)
