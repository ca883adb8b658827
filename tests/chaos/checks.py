"""What must hold between rounds: the log, held against what every program has seen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from oubliette.testing.invariants import InvariantBroken, LogChecker, check_delivery

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.chaos.site import Site
    from tests.chaos.work import Group, Record

TERMINAL = frozenset({"completed", "failed", "timed_out"})
Log = list[dict[str, Any]]


def read_logs(site: Site) -> dict[str, Log]:
    """The log of each session, as the database has it."""
    logs: dict[str, Log] = {}
    rows = site.query(
        "SELECT session_id, seq, idx, ts, type, version, data FROM events ORDER BY session_id, idx"
    )
    for session, seq, index, ts, kind, version, stored in rows:
        data = json.loads(bytes(stored))
        if "version" in data:  # of the agent: `version` is that of the event
            data["agent_version"] = data["version"]
        logs.setdefault(session, []).append(
            {
                **data,
                "type": kind,
                "session_id": session,
                "index": index,
                "ts": ts,
                "seq": seq,
                "version": version,
            }
        )
    return logs


def check_logs(site: Site, logs: dict[str, Log]) -> list[str]:
    """Each log is gapless and in order, and the tables say what it says."""
    wrong: list[str] = []
    for session, status, live in site.query("SELECT id, status, live FROM sessions"):
        checker = LogChecker()
        try:
            for event in logs.get(session, []):
                checker.add(event)
            if status != "running":
                checker.check_settled()
        except InvariantBroken as error:
            wrong.append(f"{session}: {error}")
        if checker.status != status or bool(live) != (status not in TERMINAL):
            wrong.append(f"{session} is {status} (live {live}), its log says {checker.status}")
    settled = {
        event["request_id"]: event["outcome"]
        for log in logs.values()
        for event in log
        if event["type"] == "caller_tool_settled"
    }
    for request, outcome in site.query("SELECT id, outcome FROM caller_requests"):
        if settled.get(request) != outcome:
            wrong.append(f"{request} is {outcome} in the table, {settled.get(request)} in the log")
    return wrong


def check_readers(record: Record, logs: dict[str, Log]) -> list[str]:
    """No reader by cursor has skipped, repeated or changed an event."""
    wrong: list[str] = []
    for session, events in record.read.items():
        log = logs.get(session, [])
        if events != log:
            differ = next(
                (
                    at
                    for at, pair in enumerate(zip(events, log, strict=False))
                    if pair[0] != pair[1]
                ),
                min(len(events), len(log)),
            )
            wrong.append(
                f"{session}: a reader has {len(events)} events, the log {len(log)};"
                f" at {differ}: {events[differ : differ + 1]} {log[differ : differ + 1]}"[:600]
            )
    return wrong


def check_observers(groups: Iterable[Group], logs: dict[str, Log]) -> list[str]:
    """No listener of a caller has skipped or repeated an event."""
    wrong: list[str] = []
    for group in groups:
        if group.observer is None:
            continue
        told = [event for event in group.observer.events if "index" in event]
        mine = {session: logs.get(session, []) for session in group.sessions}
        try:
            check_delivery(told, mine)
        except InvariantBroken as error:
            wrong.append(f"listener of {group.caller_id}: {error}")
    return wrong


def check_told(record: Record, logs: dict[str, Log], lost: set[str], because: str) -> list[str]:
    """What was acknowledged is in the log, with the end that was told, and did not fail for nothing.

    Looks at what was told since the latest look.
    """
    wrong: list[str] = []
    told_now, record.told = record.told, []
    for told in told_now:
        ends = [
            (event["status"], event["final_text"])
            for event in logs.get(told.session, [])
            if event["type"] == "completion" and event.get("turn") == told.turn
        ]
        name = f"{told.session} turn {told.turn}"
        if len(ends) > 1:
            wrong.append(f"{name}: {len(ends)} completions")
        if told.text is not None and ends != [("completed", told.key)]:
            wrong.append(f"{name}: {told.text!r} was told, the log has {ends}, not {told.key}")
        if told.text is not None and told.text != told.key:
            wrong.append(f"{name}: {told.text!r} was told instead of {told.key}")
        if (
            told.failed is not None
            and told.session not in lost
            and not (because and because in told.failed)
        ):
            wrong.append(f"{name}, {told.key} failed: {told.failed}")
        if told.failed is not None and any(status == "completed" for status, _ in ends):
            wrong.append(f"{name}: {told.failed!r} was told, and it is completed")
    return wrong


def check_calls(record: Record, logs: dict[str, Log]) -> list[str]:
    """Each call of a caller's tool ran once, and its agent has what the caller returned."""
    wrong: list[str] = []
    for session, log in logs.items():
        failed = any(event["type"] == "status" and event["status"] == "failed" for event in log)
        for event in log:
            if event["type"] != "caller_tool_settled":
                continue
            runs = record.runs.get(event["request_id"], [])
            outcome = event["outcome"]
            if outcome == "result" and len(runs) != 1:
                wrong.append(f"{session} {event['request_id']}: a result, and {len(runs)} runs")
            if outcome != "result" and not failed:
                wrong.append(f"{session} {event['request_id']}: {outcome} {event['error']}")
        asked = {
            event["request_id"]: event["arguments"]["what"]
            for event in log
            if event["type"] == "caller_tool_request"
        }
        got = [
            json.dumps(event["result"])
            for event in log
            if event["type"] == "tool_result"
            and not event["is_error"]
            and "approve" in event["tool"]
        ]
        done = {
            event["request_id"]
            for event in log
            if event["type"] == "caller_tool_settled" and event["outcome"] == "result"
        }
        for request in done:
            what = asked[request]
            if (
                sum(f'"{what}"' in each or f'\\"{what}\\"' in each for each in got) != 1
                and not failed
            ):
                wrong.append(f"{session} {request}: the agent has not {what} once: {got}"[:600])
    for request, runs in record.runs.items():
        if len(runs) > 1:
            wrong.append(f"{request}: ran {len(runs)} times")
    return wrong


def check_failures(
    site: Site, logs: dict[str, Log], lost: set[str], because: str, known: dict[str, int]
) -> list[str]:
    """Sessions that were to end have ended for that reason, and no others; some are resumed since.

    Args:
        site: has them.
        logs: of all.
        lost: sessions that were to end in this round.
        because: part of the reason for which; empty: none were to end.
        known: session → index up to which its ends were looked at; goes on.
    """
    wrong: list[str] = []
    for session, log in logs.items():
        since, known[session] = known.get(session, -1), log[-1]["index"]
        ends = [
            str(event["reason"])
            for event in log
            if event["index"] > since and event["type"] == "status" and event["status"] in TERMINAL
        ]
        expected = bool(ends) and all(because in end for end in ends)
        if session in lost and not expected:
            wrong.append(f"{session} should have ended: {because}; its ends are {ends}")
        # One that began after the others were counted may have been lost with them.
        if session not in lost and ends and not (because and expected):
            wrong.append(f"{session} has ended: {ends}")
    live = {session for (session,) in site.query("SELECT id FROM sessions WHERE live = 1")}
    wrong += [
        f"{session} is live and its log has ended"
        for session in live
        if logs[session][-1].get("status") in TERMINAL and logs[session][-1]["type"] == "status"
    ]
    return wrong


def check_runs(site: Site) -> list[str]:
    """No prompt ran twice."""
    runs = [
        line
        for file in (site.base / "n").glob("*/projects/*/workspaces/*/runs.txt")
        for line in file.read_text(encoding="utf-8").split()
    ]
    return [f"prompt {each} ran twice" for each in sorted({r for r in runs if runs.count(r) > 1})]
