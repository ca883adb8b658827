"""The container engines that the suite is run against, and a bench to run it on.

An engine joins by one entry in `ENGINES`: how to make it, and what the machine must have for it.
The suite asks for nothing that `Capabilities` does not promise.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oubliette import ids
from oubliette.runtime.containers import (
    LABEL_CONTAINER,
    LABEL_INSTANCE,
    LABEL_PROJECT,
    ContainerSpec,
    Mount,
    ProcessRuntime,
)
from oubliette.runtime.containers.apple.runtime import AppleRuntime
from oubliette.runtime.containers.docker import address as docker_address
from oubliette.runtime.containers.docker.runtime import DockerRuntime
from oubliette.runtime.containers.host_paths import make_owned, new_runtime_dir, runtime_base
from oubliette.runtime.guest import ControlLink, Exit, Output, StartProcess
from oubliette.runtime.zipapp import zipapp_path
from tests import requirements
from tests.conformance.tls_proxy import proxy
from tests.images import ensure_image

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.runtime.containers import ContainerInfo, ContainerRuntime

AGENT_UID = 23456
SECONDS = 20  # for whatever the suite waits for; far more than it ever takes


@dataclass(frozen=True)
class Engine:
    name: str
    make: Callable[[Path], ContainerRuntime]
    requires: str | None = None
    image: Callable[[], str] | None = None
    """Makes sure of the image and names it; None where there are no images."""

    @property
    def isolated(self) -> bool:
        return self.name != "process-best-effort"

    @property
    def speaks_docker(self) -> bool:
        return self.name.startswith(("docker", "podman"))


def process(base: Path) -> ContainerRuntime:
    return probed(ProcessRuntime(base, zipapp()))


def best_effort(base: Path) -> ContainerRuntime:
    return probed(ProcessRuntime(base, zipapp(), sandbox="best-effort"))


PROBES: dict[bool, Any] = {}


def probed(runtime: ProcessRuntime) -> ProcessRuntime:
    """Probe the sandbox once for all tests: it is 50 ms of three programs each time."""
    key = runtime._sandboxed
    if key not in PROBES:
        found = runtime._try()
        if not found.ok:
            return runtime
        PROBES[key] = found
    runtime._probe = PROBES[key]
    return runtime


@functools.cache
def zipapp() -> Path:
    return zipapp_path(zipapp_cache())


def zipapp_cache() -> Path:
    """A folder of our own: the user's cache may not be ours to write (as an ordinary user)."""
    path = Path(tempfile.gettempdir()) / f"oubliette-tests-{os.geteuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def docker(base: Path) -> ContainerRuntime:
    return DockerRuntime(base, zipapp())


def docker_bridged(base: Path) -> ContainerRuntime:
    """As with Docker Desktop: the engine shares folders and no sockets."""
    return DockerRuntime(base, zipapp(), sockets="bridge")


def podman_bridged(base: Path) -> ContainerRuntime:
    return DockerRuntime(base, zipapp(), flavour="podman", sockets="bridge")


def docker_by_tls(base: Path) -> ContainerRuntime:
    """By TCP and TLS, as an engine elsewhere; that its links are bridged is its own conclusion."""
    at = proxy(docker_address.find("docker").path or "")
    tls = docker_address._tls(at.folder, verify=True)
    runtime = DockerRuntime(base, zipapp())
    runtime._engine._address = docker_address.EngineAddress(
        url=f"tcp://127.0.0.1:{at.port}", tls=tls
    )
    return runtime


def podman(base: Path) -> ContainerRuntime:
    return DockerRuntime(base, zipapp(), flavour="podman")


STANDIN = Path(__file__).parent / "apple_standin" / "container"
"""Plays Apple's `container`, on docker or podman."""


def apple(base: Path) -> ContainerRuntime:
    beneath_apple()
    return AppleRuntime(base, zipapp(), path=str(STANDIN))


@functools.cache
def beneath_apple() -> str:
    """The engine that the stand-in works with."""
    flavour = "podman" if requirements.missing("docker") else "docker"
    address = docker_address.find(flavour)
    if address.path is not None:
        os.environ["APPLE_STANDIN_ENGINE"] = address.path
    return flavour


@functools.cache
def image(flavour: str) -> str:
    """Made of this machine's own files, once for all tests."""
    return ensure_image(flavour)


ENGINES = [
    Engine("process", process, requires="bubblewrap"),
    Engine("process-best-effort", best_effort),
    Engine("docker", docker, requires="docker", image=functools.partial(image, "docker")),
    Engine(
        "docker-bridged",
        docker_bridged,
        requires="docker",
        image=functools.partial(image, "docker"),
    ),
    Engine("podman", podman, requires="podman", image=functools.partial(image, "podman")),
    Engine("apple", apple, requires="apple-standin", image=lambda: image(beneath_apple())),
]

PODMAN_BRIDGED = Engine(
    "podman-bridged",
    podman_bridged,
    requires="podman",
    image=functools.partial(image, "podman"),
)
DOCKER_BY_TLS = Engine(
    "docker-tls", docker_by_tls, requires="docker", image=functools.partial(image, "docker")
)
IN_PART = {
    "test_container_adoption": [PODMAN_BRIDGED],
    "test_container_streams": [PODMAN_BRIDGED, DOCKER_BY_TLS],
}
"""Engines that one part of the suite alone is run on: the rest of them is that of others."""


@dataclass
class Result:
    """What one process did."""

    exit: Exit | None = None
    out: bytes = b""
    err: bytes = b""

    @property
    def text(self) -> str:
        return self.out.decode()


@dataclass
class Running:
    """A started container with a control link."""

    bench: Bench
    spec: ContainerSpec
    info: ContainerInfo
    key: bytes
    link: ControlLink
    events: list[Any]
    arrived: asyncio.Event
    numbers: Any = field(default_factory=itertools.count)

    def process(self, *argv: str, **fields: Any) -> StartProcess:
        inside = self.info.inside
        fields.setdefault("env", inside.env)
        fields.setdefault("uid", inside.uid)
        fields["cwd"] = inside.path(fields.get("cwd", "/workspace"))
        fields.setdefault("proc", ids.new_id(ids.PROCESS))
        return StartProcess(argv=argv, **fields)

    async def run(self, *argv: str, stdin: bytes | None = None, **fields: Any) -> Result:
        """Run a program to its end and read all of it."""
        process = self.process(*argv, stdin=stdin is not None, **fields)
        async with asyncio.timeout(SECONDS):
            await self.link.start(process)
            async with await self.link.attach(process.proc) as stream:
                if stdin is not None:
                    await stream.write(1, stdin)
                    await stream.write_eof(2)
                return await read_all(stream)

    async def python(self, source: str, *arguments: str, **fields: Any) -> Result:
        return await self.run(self.info.inside.python, "-I", "-c", source, *arguments, **fields)

    async def event(self, kind: str, proc: str | None = None) -> Any:
        """The first event of that kind that came or will come."""
        async with asyncio.timeout(SECONDS):
            while True:
                for event in self.events:
                    if event.event == kind and proc in (None, event.proc):
                        return event
                self.arrived.clear()
                await self.arrived.wait()


async def container_program(*argv: str) -> bytes:
    """A call of Apple's program, or of what plays it, that must succeed; its output."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(str(STANDIN), *argv, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(SECONDS):
        out, err = await process.communicate()
    assert process.returncode == 0, err
    return out


async def read_all(stream: Any) -> Result:
    result = Result()
    async for item in stream:
        if isinstance(item, Output):
            if item.stream == 1:
                assert item.offset == len(result.out)
                result.out += item.data
            else:
                assert item.offset == len(result.err)
                result.err += item.data
        elif isinstance(item, Exit):
            result.exit = item
    return result


class Bench:
    """One server's view of an engine, in folders of its own; removes all that it has made."""

    def __init__(self, engine: Engine, folder: Path | None = None) -> None:
        self.engine = engine
        self.owned = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
        # Best-effort as root needs ways that its agents' user can pass (see `SandboxPlan.check`).
        self.folder.chmod(0o711)
        self.base = runtime_base(self.folder)
        self.runtime = engine.make(self.base)
        self.instance = ids.new_id(ids.INSTANCE)
        self.links: list[ControlLink] = []
        self.made: list[str] = []

    @property
    def agent_uid(self) -> int | None:
        return AGENT_UID if self.runtime.capabilities.uid_per_container else None

    def exit_code(self, code: int) -> int | None:
        """What the runtime says of an exit code: nothing, where it cannot know."""
        return code if self.runtime.capabilities.exit_codes else None

    async def signal(self, info: ContainerInfo, number: int) -> None:
        """Behind the runtime's back: a signal to the first process of a container."""
        if self.engine.name == "apple":
            await container_program("kill", "--signal", str(int(number)), info.handle["name"])
        else:
            os.kill(info.handle["pid"], number)

    def project(self, name: str | None = None) -> Path:
        folder = make_owned(self.folder, name or f"p{secrets.token_hex(3)}", uid=self.agent_uid)
        make_owned(folder, "workspaces", uid=self.agent_uid)
        return folder

    def spec(self, **fields: Any) -> ContainerSpec:
        container_id = ids.new_id(ids.CONTAINER)
        labels = {
            LABEL_INSTANCE: self.instance,
            LABEL_CONTAINER: container_id,
            LABEL_PROJECT: ids.new_id(ids.PROJECT),
        }
        if "mounts" not in fields:
            homes = make_owned(self.folder, f"h{secrets.token_hex(3)}", uid=self.agent_uid)
            fields["mounts"] = (Mount(self.project(), "/workspace"), Mount(homes, "/home/agent"))
        none = self.runtime.capabilities.network_none
        fields.setdefault("network", "none" if none else "host")
        return ContainerSpec(
            id=container_id,
            labels=labels,
            runtime_dir=new_runtime_dir(self.base),
            image=self.engine.image() if self.engine.image is not None else None,
            uid=self.agent_uid,
            **fields,
        )

    async def start(self, spec: ContainerSpec | None = None, **fields: Any) -> Running:
        """Make and start a container and open its control link."""
        async with asyncio.timeout(SECONDS):
            status = await self.runtime.ping()
            assert status.ok, status
            spec = spec or self.spec(**fields)
            self.made.append(spec.id)
            await self.runtime.create(spec)
            key = secrets.token_bytes(32)
            info = await self.runtime.start(spec.id, key=key)
            return await self.connect(spec, info, key)

    async def connect(
        self, spec: ContainerSpec, info: ContainerInfo, key: bytes, epoch: int = 1
    ) -> Running:
        events: list[Any] = []
        arrived = asyncio.Event()

        def hear(event: Any) -> None:
            events.append(event)
            arrived.set()

        link = await ControlLink.connect(self.runtime.dial(info), key, epoch=epoch, on_event=hear)
        self.links.append(link)
        return Running(self, spec, info, key, link, events, arrived)

    async def sweep(self) -> None:
        """Remove what a test has left in an engine, by our own label and no other."""
        if self.engine.image is None or not self.made:
            return
        runtime = self.engine.make(self.base)
        try:
            for info in await runtime.adopt(self.instance):
                await runtime.remove(info.id)
        finally:
            await runtime.aclose()

    async def aclose(self) -> None:
        for link in self.links:
            await link.aclose()
        for container_id in self.made:
            await self.runtime.remove(container_id)
        await self.runtime.aclose()
        await self.sweep()
        if self.owned:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.folder)
