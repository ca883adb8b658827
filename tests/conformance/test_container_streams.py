"""Every container runtime: streams lose nothing and hold back who is not read."""

from __future__ import annotations

import asyncio
import hashlib
import itertools

import pytest

from oubliette.runtime.guest import Eof, Exit, GuestRefused, LinkClosed, Output, StdinOk, pieces
from tests.conformance.engines import SECONDS, Bench, read_all

pytestmark = pytest.mark.anyio

WRITE_50_MB = """
import hashlib, sys
sum = hashlib.sha256()
for number in range(800):
    block = number.to_bytes(4, "big") * 16384
    sum.update(block)
    sys.stdout.buffer.write(block)
sys.stdout.flush()
sys.stderr.write(sum.hexdigest())
"""


async def test_50_mb_of_unread_output_hold_the_process_back_and_nothing_is_lost(
    bench: Bench,
) -> None:
    running = await bench.start()
    process = running.process(
        running.info.inside.python, "-I", "-c", WRITE_50_MB, spool_bytes=2 << 20
    )
    await running.link.start(process)
    await running.event("spool_full", process.proc)
    assert not [event for event in running.events if event.event == "exited"]
    async with asyncio.timeout(SECONDS * 2):
        digest = hashlib.sha256()
        size = 0
        said = b""
        async with await running.link.attach(process.proc) as stream:
            async for item in stream:
                if isinstance(item, Output) and item.stream == 1:
                    assert item.offset == size
                    size += len(item.data)
                    digest.update(item.data)
                    if size % (1 << 20) < len(item.data):
                        # As sessions do it: what is safe is acked, and makes room.
                        await running.link.ack(process.proc, size, 0)
                elif isinstance(item, Output):
                    said += item.data
    assert size == 800 * 65536
    assert digest.hexdigest() == said.decode()
    assert item == Exit(code=0)


async def test_an_attach_that_is_not_read_holds_its_process_back(bench: Bench) -> None:
    running = await bench.start()
    process = running.process(
        running.info.inside.python, "-I", "-c", WRITE_50_MB, spool_bytes=2 << 20
    )
    await running.link.start(process)
    async with await running.link.attach(process.proc) as stream:
        first = await stream.read()
        await running.event("spool_full", process.proc)
        # The control link is not held up by it, and what was written can still be read.
        assert await running.link.signal(process.proc, "KILL")
        async with asyncio.timeout(SECONDS):
            items = [first]
            async for item in stream:
                items.append(item)
                if isinstance(item, Output) and item.stream == 1:
                    await running.link.ack(process.proc, item.offset + len(item.data), 0)
        outputs = [item for item in items if isinstance(item, Output)]
        assert outputs[0].offset == 0
        for item, following in itertools.pairwise(outputs):
            assert item.offset + len(item.data) == following.offset
        assert items[-1] == Exit(signal=9)


async def test_input_and_output_carry_any_bytes(bench: Bench) -> None:
    running = await bench.start()
    data = bytes(range(256)) * 3000
    process = running.process("cat")
    async with asyncio.timeout(SECONDS):
        await running.link.start(process)
        async with await running.link.attach(process.proc) as stream:
            for number, piece in enumerate(pieces(data), start=1):
                await stream.write(number, piece)
            await stream.write_eof(number + 1)
            result = await read_all(stream)
    assert result.out == data
    assert result.exit == Exit(code=0)


async def test_lines_of_one_megabyte_pass_both_ways(bench: Bench) -> None:
    running = await bench.start()
    line = b"x" * (1 << 20) + b"\n"
    process = running.process("cat")
    async with asyncio.timeout(SECONDS):
        await running.link.start(process)
        async with await running.link.attach(process.proc) as stream:

            async def write() -> None:
                seq = 0
                for _ in range(4):
                    for piece in pieces(line):
                        seq += 1
                        await stream.write(seq, piece)
                await stream.write_eof(seq + 1)

            _, result = await asyncio.gather(write(), read_all(stream))
    assert result.out == line * 4


async def test_a_message_of_sixteen_megabytes_is_one_frame_of_input(bench: Bench) -> None:
    running = await bench.start()
    data = b"y" * (16 << 20)
    process = running.process("sh", "-c", "wc -c")
    async with asyncio.timeout(SECONDS):
        await running.link.start(process)
        async with await running.link.attach(process.proc) as stream:
            await stream.write(1, data)
            await stream.write_eof(2)
            assert (await read_all(stream)).text.strip() == str(len(data))


async def test_closing_the_input_leaves_the_output_open(bench: Bench) -> None:
    running = await bench.start()
    result = await running.run("sh", "-c", "cat; echo after; echo aside >&2", stdin=b"before ")
    assert result.text == "before after\n"
    assert result.err == b"aside\n"


async def test_input_that_comes_again_is_taken_once(bench: Bench) -> None:
    running = await bench.start()
    process = running.process("cat")
    async with asyncio.timeout(SECONDS):
        await running.link.start(process)
        async with await running.link.attach(process.proc) as stream:
            await stream.write(1, b"once ")
            while await stream.read() != StdinOk(1):
                pass
        async with await running.link.attach(process.proc) as stream:
            assert await stream.read() == StdinOk(1)
            await stream.write(1, b"once ")
            await stream.write(2, b"more")
            await stream.write_eof(3)
            result = await read_all(stream)
    assert result.out == b"once more"


async def test_input_that_skips_a_number_closes_the_link(bench: Bench) -> None:
    running = await bench.start()
    process = running.process("cat")
    async with asyncio.timeout(SECONDS):
        await running.link.start(process)
        async with await running.link.attach(process.proc) as stream:
            await stream.write(2, b"too early")
            with pytest.raises((LinkClosed, GuestRefused)):
                await read_all(stream)
        async with await running.link.attach(process.proc) as stream:
            assert await stream.read() == StdinOk(0)


async def test_standard_error_is_drained_while_nobody_reads(bench: Bench) -> None:
    running = await bench.start()
    process = running.process("sh", "-c", "head -c 5000000 /dev/zero >&2; echo done")
    await running.link.start(process)
    event = await running.event("exited", process.proc)
    assert (event.exit.code, event.out, event.err) == (0, 5, 5_000_000)
    async with asyncio.timeout(SECONDS), await running.link.attach(process.proc) as stream:
        result = await read_all(stream)
    assert (result.out, len(result.err)) == (b"done\n", 5_000_000)


async def test_output_can_be_read_again_from_any_offset_until_it_is_acked(bench: Bench) -> None:
    running = await bench.start()
    process = running.process("sh", "-c", "printf 0123456789; printf abc >&2")
    async with asyncio.timeout(SECONDS):
        await running.link.start(process)
        await running.event("exited", process.proc)
        for start in (0, 4, 10):
            async with await running.link.attach(process.proc, start, 1) as stream:
                items = [item async for item in stream]
            outputs = [item for item in items if isinstance(item, Output)]
            said = b"".join(item.data for item in outputs if item.stream == 1)
            assert said == b"0123456789"[start:]
            assert b"".join(item.data for item in outputs if item.stream == 2) == b"bc"
            assert [type(item) for item in items].count(Eof) == 2
            assert items[-1] == Exit(code=0)


async def test_a_newer_attach_takes_the_streams_over(bench: Bench) -> None:
    running = await bench.start()
    process = running.process("cat")
    async with asyncio.timeout(SECONDS):
        await running.link.start(process)
        async with await running.link.attach(process.proc) as older:
            # Each has a connection of its own: without this, either may be the newer one.
            assert await older.read() == StdinOk(0)
            async with await running.link.attach(process.proc) as newer:
                with pytest.raises((LinkClosed, GuestRefused)):
                    await read_all(older)
                assert await newer.read() == StdinOk(0)
                await newer.write(1, b"still here")
                await newer.write_eof(2)
                assert (await read_all(newer)).out == b"still here"


async def test_an_attach_to_a_process_that_is_not_there_is_refused(bench: Bench) -> None:
    running = await bench.start()
    async with asyncio.timeout(SECONDS), await running.link.attach("proc_none") as stream:
        with pytest.raises(GuestRefused):
            await stream.read()


async def test_a_read_that_is_given_up_loses_no_byte(bench: Bench) -> None:
    running = await bench.start()
    process = running.process("cat")
    async with asyncio.timeout(SECONDS):
        await running.link.start(process)
        async with await running.link.attach(process.proc) as stream:
            assert await stream.read() == StdinOk(0)
            waiting = asyncio.create_task(stream.read())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await stream.write(1, b"whole")
            await stream.write_eof(2)
            assert (await read_all(stream)).out == b"whole"
