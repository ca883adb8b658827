"""Every container runtime: a secret that has to be a file is one in memory, and ends with its user.

"on tmpfs where an agent insists on a file, never on a disk".
"""

from __future__ import annotations

import asyncio
import base64

import pytest

from oubliette.runtime.guest import CommandFailed
from oubliette.runtime.guest.messages import SecretFile
from tests.conformance.engines import SECONDS, Bench

pytestmark = pytest.mark.anyio

LOOK = """
import os, stat
path = os.environ["KEY_FILE"]
kinds = {}
for line in open("/proc/self/mounts"):
    kinds[line.split()[1]] = line.split()[2]
mount = max((m for m in kinds if path.startswith(m.rstrip("/") + "/")), key=len)
modes = [stat.S_IMODE(os.stat(p).st_mode) for p in (path, os.path.dirname(path))]
print(open(path).read(), kinds[mount], *map(oct, modes), os.stat(path).st_uid == os.getuid())
"""

LEFT = """
import os
print([name for name in os.listdir("/dev/shm") if name.startswith("oubliette-PROC")])
"""


def secret(text: str = "the secret", **fields: str) -> SecretFile:
    data = base64.b64encode(text.encode()).decode()
    return SecretFile(**{"variable": "KEY_FILE", "name": "key", "data": data, **fields})


async def test_it_is_in_memory_and_its_owners_alone(bench: Bench) -> None:
    running = await bench.start()
    seen = await running.python(LOOK, secret_files=(secret(),))
    assert seen.text.split("\n")[0] == "the secret tmpfs 0o600 0o700 True", seen


async def test_it_is_gone_when_the_process_has_ended_however_it_did(bench: Bench) -> None:
    running = await bench.start()
    for ending in ("pass", "import os; os.kill(os.getpid(), 9)"):
        process = running.process(
            running.info.inside.python, "-I", "-c", ending, secret_files=(secret(),)
        )
        async with asyncio.timeout(SECONDS):
            await running.link.start(process)
        await running.event("exited", process.proc)
        look = LEFT.replace("PROC", process.proc)
        async with asyncio.timeout(SECONDS):  # it is removed by a process of its own
            while (left := (await running.python(look)).text.strip()) != "[]":
                assert process.proc in left


async def test_one_that_cannot_be_is_refused_and_its_content_not_repeated(bench: Bench) -> None:
    running = await bench.start()
    for wrong in (
        {"name": "../up"},
        {"name": ".hidden/x"},
        {"data": "not base64!"},
        {"variable": ""},
    ):
        with pytest.raises(CommandFailed) as refused:
            await running.run("true", secret_files=(secret(**wrong),))
        assert "the secret" not in str(refused.value)
