"""Docker and podman: any image with Python will do, and one without says what it lacks."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.errors import RuntimeFailure
from oubliette.runtime.containers import Mount
from oubliette.runtime.guest import CommandFailed, Exit
from tests.conformance.engines import ENGINES, Bench
from tests.images import ensure_image

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

FLAVOURS = [pytest.param(name, marks=pytest.mark.requires(name)) for name in ("docker", "podman")]


@pytest.fixture(params=FLAVOURS)
async def bench(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Bench]:
    (engine,) = [each for each in ENGINES if each.name == request.param]
    made = Bench(engine)
    await made.runtime.ping()
    try:
        yield made
    finally:
        await made.aclose()


@functools.cache
def bare(flavour: str, *, python: bool = True, programs: str = "") -> str:
    return ensure_image(flavour, programs=programs, python=python)


def spec_with(bench: Bench, image: str, *mounts: Mount) -> Any:
    spec = bench.spec()
    return msgspec.structs.replace(spec, image=image, mounts=(*spec.mounts, *mounts))


async def test_an_image_of_nothing_but_python_is_enough(bench: Bench) -> None:
    running = await bench.start(spec_with(bench, bare(bench.engine.name)))
    done = await running.python("import os, ssl, sqlite3\nprint(os.listdir('/usr/bin'))")
    assert done.exit == Exit(code=0), done.err
    assert "sh" not in done.text.replace("'", " ").split()
    with pytest.raises(CommandFailed, match="sh: no such program"):
        await running.run("sh", "-c", "true")
    scripted = (running.info.inside.python, running.info.inside.zipapp, "scripted-agent")
    agent = await running.run(*scripted, stdin=b"", env={**running.info.inside.env, "HOME": "/tmp"})
    assert '"type":"ready"' in agent.text.replace(" ", "")


async def test_an_image_without_python_says_what_it_needs(bench: Bench) -> None:
    image = bare(bench.engine.name, python=False, programs="true")
    spec = spec_with(bench, image)
    bench.made.append(spec.id)
    await bench.runtime.create(spec)
    with pytest.raises(RuntimeFailure, match="did not start") as caught:
        await bench.runtime.start(spec.id, key=b"k" * 32)
    assert f"the image {image} needs python3, 3.9 or later" in (caught.value.hint or "")
    assert "containers.image" in (caught.value.hint or "")
    assert (await bench.runtime.inspect(spec.id)).state == "created"


def old_python() -> Path | None:
    """The folder of an installed Python that is too old, of pyenv's."""
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    found = sorted(root.glob("versions/3.[5678].*/bin/python3"))
    return found[-1].resolve().parent.parent if found else None


async def test_a_python_that_is_too_old_is_named(bench: Bench) -> None:
    folder = old_python()
    if folder is None:
        pytest.skip("there is no Python before 3.9 among pyenv's versions")
    mounts = (
        Mount((folder / "bin/python3").resolve(), "/opt/old/bin/python3", read_only=True),
        Mount(folder / "lib", "/opt/old/lib", read_only=True),
    )
    spec = msgspec.structs.replace(
        spec_with(bench, bare(bench.engine.name), *mounts),
        env={"PATH": "/opt/old/bin:/usr/bin", "LD_LIBRARY_PATH": "/opt/old/lib"},
    )
    bench.made.append(spec.id)
    await bench.runtime.create(spec)
    with pytest.raises(RuntimeFailure, match=r"this is Python 3\.\d") as caught:
        await bench.runtime.start(spec.id, key=b"k" * 32)
    assert "needs python3, 3.9 or later" in (caught.value.hint or "")
