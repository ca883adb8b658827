"""Plays a server that is killed: makes a container, says what it made, and waits.

    python -m tests.conformance.server_standin ENGINE FOLDER INSTANCE create|start [NETWORK]

With `start` a process runs in it that says what it is told, and has a second one beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from pathlib import Path

from oubliette.runtime.containers.base import KEY_FILE
from tests.conformance.engines import ENGINES, IN_PART, Bench


async def main(
    engine_name: str, folder: str, instance: str, step: str, network: str | None = None
) -> None:
    every = [*ENGINES, *itertools.chain(*IN_PART.values())]
    engine = next(engine for engine in every if engine.name == engine_name)
    bench = Bench(engine, Path(folder))
    bench.instance = instance
    spec = bench.spec() if network is None else bench.spec(network=network)
    said = {"id": spec.id, "runtime_dir": str(spec.runtime_dir)}
    if step == "create":
        await bench.runtime.ping()
        await bench.runtime.create(spec)
    else:
        # Told before it starts: a failpoint may end us right after.
        print(json.dumps(said), flush=True)
        running = await bench.start(spec)
        talker = running.process("cat", proc="talker")
        await running.link.start(talker)
        async with await running.link.attach("talker") as stream:
            await stream.write(1, b"before the kill\n")
            while getattr(await stream.read(), "data", b"") != b"before the kill\n":
                pass
        await running.link.start(running.process("sh", "-c", "read x; exit 3", proc="waiter"))
        said["key"] = running.key.hex()
    assert not (spec.runtime_dir / KEY_FILE).exists()
    print(json.dumps(said), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
