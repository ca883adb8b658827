"""A project whose files cannot all be counted is taken for one above its limit."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from oubliette.actors.project.disk_quota import DiskQuotaMonitor, Measured
from oubliette.config.schema import Config
from oubliette.errors import LimitExceeded


def monitor(notices: list[Any], stops: list[Any] | None = None) -> DiskQuotaMonitor:
    session = SimpleNamespace(is_alive=lambda: True, tell=notices.append)
    registry = SimpleNamespace(session=lambda _: session)
    context: Any = SimpleNamespace(config=Config(), session_registry=registry)

    async def stop(message: Any) -> None:
        (stops if stops is not None else []).append(message)

    def begin(work: Any, *_: object) -> None:
        with contextlib.suppress(AttributeError):  # there is no reader to measure with
            asyncio.run(work)

    container: Any = SimpleNamespace(ask=stop)
    return DiskQuotaMonitor(context, "proj_1", lambda *_: None, begin, lambda: [container])


def measured(*, complete: bool = True, relay: int = 0) -> Measured:
    return Measured(used=1, relay=relay, complete=complete, seconds=0.1, sessions=("sess_1",))


def test_what_cannot_be_measured_again_and_again_interrupts() -> None:
    notices: list[Any] = []
    watched = monitor(notices)
    for complete in (False, True, *[False] * 5):
        watched.measured(measured(complete=complete))
    assert notices == []
    watched.measured(measured(complete=False))
    (notice,) = notices
    assert (notice.limit, notice.action) == ("projects.max_bytes", "interrupt")
    assert "make all folders readable" in notice.message
    # Its agent has the time until the next ones to remove files.
    watched.measured(measured(complete=False))
    assert len(notices) == 1


def test_files_in_the_folder_of_the_relay_interrupt_once_until_they_grow() -> None:
    notices: list[Any] = []
    watched = monitor(notices)
    for size in (4096, 2 << 20, 2 << 20, 3 << 20, 0, 2 << 20):
        watched.measured(measured(relay=size))
    assert [notice.action for notice in notices] == ["interrupt"] * 3
    assert "/mcp has 2 MiB of 1 MiB" in notices[0].message


def test_a_disk_that_is_nearly_full_interrupts_before_the_server_cannot_write() -> None:
    notices: list[Any] = []
    watched = monitor(notices)
    mib = 1 << 20
    for free in (1000, 255, 250, 200, 1000, 255):
        watched.measured(msgspec.structs.replace(measured(), free=free * mib))
    assert [notice.action for notice in notices] == ["interrupt"] * 3
    assert "has 255 MiB left (projects.keep_free_bytes: 256 MiB)" in notices[0].message


GIB = 1 << 30


def test_what_grows_without_a_turn_or_in_spite_of_interrupts_has_its_containers_stopped() -> None:
    idle, busy = False, True
    for growth, expected in (
        (((21, busy), (22, busy), (23, busy), (23, busy)), [0, 0, 1, 1]),
        (((21, busy), (21.5, idle), (22, idle), (23, idle)), [0, 0, 1, 2]),
        (((21, idle), (21, busy), (10, busy), (22, busy), (23, busy)), [0, 0, 0, 0, 0]),
    ):
        notices: list[Any] = []
        stops: list[Any] = []
        watched = monitor(notices, stops)
        seen = []
        for size, running in growth:
            watched.measured(
                msgspec.structs.replace(measured(), used=int(size * GIB), running=running)
            )
            seen.append(len(stops))
        assert seen == expected
        assert all(stop.force for stop in stops)
        told = [
            notice.message for notice in notices if "its containers are stopped" in notice.message
        ]
        assert len(told) == len(stops)


def test_what_grew_until_its_containers_were_stopped_stops_none_that_began_since_then() -> None:
    stops: list[Any] = []
    watched = monitor([], stops)
    sizes = ((21, 0), (23, 1), (25, 1), (25.5, 1), (27, 2))
    for number, (size, expected) in enumerate(sizes):
        watched.measured(
            msgspec.structs.replace(measured(), used=int(size * GIB), stopped=number == 2)
        )
        assert len(stops) == expected


def test_no_command_is_run_above_the_limit_until_it_was_measured_below() -> None:
    watched = monitor([])
    watched.check_command()
    watched.measured(msgspec.structs.replace(measured(), used=21 * GIB, sessions=()))
    with pytest.raises(LimitExceeded, match="21 GiB of 20 GiB: no command is run"):
        watched.check_command()
    watched.measured(measured())
    watched.check_command()
