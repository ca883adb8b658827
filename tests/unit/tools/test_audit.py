"""Order of the entries that the tools write to the audit log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from oubliette.runtime import audit_log
from oubliette.runtime.audit_log import AuditLog
from oubliette.tools.audit import note_call

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio


class About(msgspec.Struct):
    session_id: str


async def test_an_entry_whose_project_is_looked_up_has_the_time_at_which_it_was_written(
    bench: Bench, tmp_path: Path
) -> None:
    session = await bench.session(await bench.project())
    _, context = await bench.key("admin")
    services = bench.services
    log = services.audit = AuditLog(tmp_path, max_bytes=1 << 20, files=2)
    about = (About(session_id=session.id), None)
    slow = asyncio.create_task(note_call(services, context, "slow", "ok", parts=about))
    await asyncio.sleep(0)  # it reads the session's record from the store now
    await note_call(services, context, "quick", "ok")
    await slow
    await asyncio.to_thread(log.close)
    entries = list(audit_log.read(tmp_path))
    assert [entry.tool for entry in entries] == ["quick", "slow"]
    assert entries[0].ts < entries[1].ts
    assert entries[1].project_id == session.project_id
