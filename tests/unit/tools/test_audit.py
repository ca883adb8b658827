"""Entries that the tools write to the audit log: their order, and what they never have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from oubliette.runtime import audit_log
from oubliette.runtime.audit_log import AuditLog
from oubliette.tools.audit import note_call, note_refused_key
from oubliette.tools.auth.rate_limits import RateLimits

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


@pytest.mark.parametrize("text", ["very-private", "\u0001" * 65_536, "gogol_", "proj_" + "l" * 26])
@pytest.mark.parametrize(
    ("tool", "fields"),
    [
        ("caller_tool_response", {"request_id": "r", "result": 1}),
        ("caller_tool_progress", {"request_id": "r", "message": "m"}),
        ("permission_response", {"request_id": "r", "decision": "deny"}),
        ("session_get", {}),
        ("project_get", {}),
    ],
)
async def test_text_of_a_caller_is_never_in_an_entry(
    bench: Bench, tmp_path: Path, tool: str, fields: dict[str, object], text: str
) -> None:
    log = bench.services.audit = AuditLog(tmp_path, max_bytes=1 << 20, files=2)
    named = "project_id" if tool == "project_get" else "session_id"
    assert (await bench.call(tool, {named: text, **fields})).is_error
    await asyncio.to_thread(log.close)
    (entry,) = audit_log.read(tmp_path)
    assert (entry.tool, entry.target_session_id, entry.project_id) == (tool, None, None)
    assert (tmp_path / audit_log.FILE_NAME).stat().st_size < 500


async def test_a_flood_of_a_key_that_is_refused_fills_no_files(
    bench: Bench, tmp_path: Path
) -> None:
    key, _ = await bench.key("write")
    token = bench.keys.recognise(key)
    log = bench.services.audit = AuditLog(tmp_path, max_bytes=1 << 20, files=2)
    bench.services.rates = RateLimits(0.001, 5, bench.clock)
    for _ in range(50):
        await note_refused_key(bench.services, token, "http")
    await bench.services.rates.take(token.principal)  # a good key of the same principal has its own
    await asyncio.to_thread(log.close)
    assert len(list(audit_log.read(tmp_path))) == 5
