"""Records to fill a store with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from oubliette.records import (
    CallerRequest,
    Container,
    Event,
    IdempotencyKey,
    PermissionRequest,
    Project,
    Session,
    Token,
    Turn,
    Workspace,
)
from oubliette.runtime.store.database import Database
from oubliette.runtime.store.opening import open_database

if TYPE_CHECKING:
    from oubliette.runtime.store.postgres.database import PostgresDatabase


def opened(where: Path | str) -> Database | PostgresDatabase:
    """The database in a file, or at a URL."""
    if isinstance(where, str) and "://" in where:
        return open_database(where, Path())
    return Database(where)


def event(index: int, session: str = "s1", **changes) -> Event:
    fields = {"ts": 1.0, "type": "message", "data": {"text": f"event {index}"}} | changes
    return Event(session_id=session, index=index, **fields)


def session(number: int = 1, **changes) -> Session:
    fields = {
        "project_id": "proj_1",
        "workspace_id": "w1",
        "principal": "prin_1",
        "agent": "scripted",
        "status": "running",
        "created_at": 1.0,
        "updated_at": 1.0,
        "exploration_id": "expl_1",
    } | changes
    return Session(id=f"s{number}", **fields)


def permission(session: str = "s1", **changes) -> PermissionRequest:
    fields = {
        "id": f"perm-{session}",
        "principal": "prin_1",
        "caller_id": None,
        "agent_request_id": "1",
        "asks_for": "shell",
        "turn": 1,
        "created_at": 1.0,
        "deadline": 61.0,
        "event_index": 0,
    } | changes
    return PermissionRequest(session_id=session, **fields)


def project(number: int = 1, **changes) -> Project:
    fields = {
        "name": f"Project {number}",
        "created_at": float(number),
        "default_workspace_id": "w1",
        "uid": 1000,
    } | changes
    return Project(id=f"proj_{number}", **fields)


def workspace(number: int = 1, **changes) -> Workspace:
    fields = {"project_id": "proj_1", "created_at": float(number)} | changes
    return Workspace(id=f"w{number}", **fields)


def container(number: int = 1, **changes) -> Container:
    fields = {
        "project_id": "proj_1",
        "workspace_id": None,
        "container_type": "base",
        "runtime": "process",
        "state": "running",
        "created_at": 1.0,
        "spec_hash": "00",
        "host_key": bytes(range(32)),
        "folder": "there",
    } | changes
    return Container(id=f"cont_{number}", **fields)


def turn(number: int = 1, **changes) -> Turn:
    fields = {"session_id": "s1", "prompt": "do", "state": "queued", "created_at": 1.0} | changes
    return Turn(number=number, **fields)


def request(number: int = 1, **changes) -> CallerRequest:
    fields = {
        "session_id": "s1",
        "principal": "prin_1",
        "caller_id": "me",
        "tool": "look",
        "arguments": {"at": [1, None, "x"]},
        "created_at": float(number),
        "deadline": 60.0,
        "event_index": 0,
    } | changes
    return CallerRequest(id=f"req{number}", **fields)


def token(number: int = 1, **changes) -> Token:
    fields = {
        "digest": b"\x00\xff" * 16,
        "name": "n",
        "scope": "admin",
        "principal": "prin_1",
        "created_at": 1.0,
    } | changes
    return Token(id=f"tok_{number}", **fields)


def key(name: str = "k", **changes) -> IdempotencyKey:
    fields = {"digest": b"d" * 32, "created_at": 1000.0} | changes
    return IdempotencyKey(principal="prin_1", tool="session_spawn", key=name, **fields)
