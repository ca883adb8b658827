"""The program that reads and writes workspaces for the server, as the user who owns them.

It starts git while it has the server's rights, opens the workspace, and becomes the workspace's
owner before it looks at anything in it: what an agent planted there can reach no more than the
agent could. Git has the server's rights and sees no workspace, only the stream of this program.

Each job has a process of its own, a child of `job_server`. Standard library only, as there.

Git sees nothing of a workspace but this stream, in which names and contents are quoted: it opens no
file there, so no attribute, filter, hook or configuration of a repository has an effect.

Standard library only: the program that reads workspaces imports this module.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oubliette.runtime.snapshots.workspace.branch_names import begin_branch
from oubliette.runtime.snapshots.workspace.tree_reader import TreeReader
from oubliette.runtime.snapshots.workspace.tree_table import (
    MANIFEST,
    PARTS,
    TreeTable,
    decoded,
    placed,
)
from oubliette.runtime.snapshots.workspace.tree_walk import FOLDER, TooLate, TooMany
from oubliette.runtime.snapshots.workspace.tree_writer import StoredTree, TreeWriter

if TYPE_CHECKING:
    from typing import IO

AUTHOR: Final = b"Oubliette <oubliette@oubliette.invalid>"
_ESCAPED: Final = {b"\\": b"\\\\", b'"': b'\\"', b"\n": b"\\n"}


def quoted(path: bytes) -> bytes:
    """Return a path as git takes it; any bytes are allowed."""
    for plain, escaped in _ESCAPED.items():
        path = path.replace(plain, escaped)
    return b'"' + path + b'"'


class ImportStream:
    """Writer of commands; the two files are git's standard input and output."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self._commands = commands
        self._answers = answers

    def blob(self, data: bytes) -> None:
        self._commands.write(b"blob\n")
        self._data(data)

    def commit(
        self, ref: str, mark: int, message: str, when: int, parent: str | None, *, afresh: bool
    ) -> None:
        """Begin a commit; `modify` and `delete` make its tree out of the parent's.

        Args:
            ref: Is set to it.
            mark: Number under which `made` names it.
            message: Text.
            when: Second since 1970.
            parent: Name of the commit before it.
            afresh: Whether its tree begins empty.
        """
        head = f"commit {ref}\nmark :{mark}\n".encode()
        self._commands.write(head + b"committer " + AUTHOR + f" {when} +0000\n".encode())
        self._data(message.encode("utf-8", "replace"))
        if parent is not None:
            self._commands.write(f"from {parent}\n".encode())
        if afresh:
            self._commands.write(b"deleteall\n")

    def modify(self, path: bytes, mode: bytes, content: str) -> None:
        """Set an entry of the tree to a content."""
        self._commands.write(b"M " + mode + b" " + content.encode() + b" " + quoted(path) + b"\n")

    def write(self, path: bytes, data: bytes) -> None:
        """Set an entry of the tree to a content that is given here."""
        self._commands.write(b"M 100644 inline " + quoted(path) + b"\n")
        self._data(data)

    def delete(self, path: bytes) -> None:
        self._commands.write(b"D " + quoted(path) + b"\n")

    def made(self, mark: int) -> str:
        """Return the name of a commit; waits until git has made it."""
        self._commands.write(f"\nget-mark :{mark}\n".encode())
        self._commands.flush()
        return self._answers.readline().decode().strip()

    def end(self) -> None:
        """End the stream; without this, git keeps nothing of it."""
        self._commands.write(b"done\n")
        self._commands.close()

    def _data(self, data: bytes) -> None:
        self._commands.write(f"data {len(data)}\n".encode() + data + b"\n")


NICENESS: Final = 5
NEW_REFS: Final = {part: f"refs/new/{part}" for part in PARTS}
"""Refs that git sets when it has stored a snapshot; the server makes lasting ones of them."""
_SHOWN: Final = 20
"""Paths of left-out entries that an answer names."""
_PASSES: Final = 3


def do(job: dict[str, Any]) -> dict[str, Any]:
    """Do a job; return its answer. For a process of its own, which becomes another user."""
    signal.alarm(int(job["seconds"]) + 5)  # ends it even if its server is gone
    deadline = time.monotonic() + job["seconds"]
    os.umask(0o022)
    try:
        return (_take if job["do"] == "take" else _restore)(job, deadline)
    except TooLate:
        return {"status": "late"}
    except TooMany:
        return {"status": "many"}
    except (OSError, ValueError) as error:
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}


def _as_owner(root: int) -> None:
    """Become the owner of the workspace irrevocably, if the server is root."""
    os.nice(NICENESS)
    status = os.fstat(root)
    if os.geteuid() == 0 and status.st_uid != 0:
        os.setgroups([])
        os.setresgid(status.st_gid, status.st_gid, status.st_gid)
        os.setresuid(status.st_uid, status.st_uid, status.st_uid)


def _git(job: dict[str, Any], *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*job["git"], *arguments],
        env=job["environment"],
        cwd=job["repository"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


# ---------------------------------------------------------------------- taking a snapshot


def _take(job: dict[str, Any], deadline: float) -> dict[str, Any]:
    known, heads = TreeTable(), dict[str, str]()
    if job["table"] is not None:
        found = decoded(Path(job["table"]).read_bytes())
        if found is not None:
            known, heads = found
    afresh = not heads
    git = _git(job, "fast-import", "--quiet", "--done", "--force", "--depth=0")
    assert git.stdin is not None
    assert git.stdout is not None
    with Path(job["new_table"]).open("xb") as new_table:
        root = os.open(job["workspace"], FOLDER)
        _as_owner(root)
        stream = ImportStream(git.stdin, git.stdout)
        stored = {entry.content for entry in known.entries.values()}

        def store(name: str, data: bytes) -> None:
            if name not in stored:
                stored.add(name)
                stream.blob(data)

        table, torn = _read(job, root, known, store, deadline)
        answer = _described(table, torn=torn)
        if afresh or not table.same_as(known):
            heads = _commit(job, stream, table, known, heads, torn=torn)
            answer["status"] = "taken"
        else:
            answer["status"] = "unchanged"
        stream.end()
        if git.wait() != 0:
            raise OSError(f"git fast-import ended with {git.returncode}")
        answer["table"] = afresh or not table.is_as_stored(known)
        if answer["table"]:
            new_table.write(table.encode(heads))
    return {**answer, "heads": heads}


def _read(
    job: dict[str, Any], root: int, known: TreeTable, store: Any, deadline: float
) -> tuple[TreeTable, bool]:
    """Return the table of the workspace, and whether it changed all the while."""
    table, torn = known, False
    for attempt in range(_PASSES):
        reader = TreeReader(table, store, max_file_bytes=job["max_file_bytes"], deadline=deadline)
        reader.read(root, job["max_entries"], _only(job))
        same = reader.table.same_as(table) and reader.steady
        table = reader.table
        if reader.of_one_moment:
            return table, False
        if same and (attempt > 0 or job["table"] is not None):
            return table, False
        torn = attempt > 0
    return table, torn


def _only(job: dict[str, Any]) -> list[bytes]:
    return [os.fsencode(path) for path in job["only"]]


def _described(table: TreeTable, *, torn: bool) -> dict[str, Any]:
    large = [path for path, entry in table.entries.items() if entry.kind == "large"]
    shown = {
        os.fsdecode(path): reason
        for path, reason in (
            *((path, "larger than snapshots.max_file_bytes") for path in large[:_SHOWN]),
            *list(table.left_out.items())[:_SHOWN],
        )
    }
    return {
        "entries": len(table.entries),
        "left_out": len(large) + len(table.left_out),
        "left_out_shown": {name.encode("utf-8", "replace").decode(): shown[name] for name in shown},
        "torn": torn,
    }


def _commit(
    job: dict[str, Any],
    stream: ImportStream,
    table: TreeTable,
    known: TreeTable,
    heads: dict[str, str],
    *,
    torn: bool,
) -> dict[str, str]:
    """Store the trees that have changed; return the commits of both."""
    changes = table.changes_from(known)
    manifest = None if heads and table.has_manifest_of(known) else table.manifest()
    message = job["message"] + ("Torn: yes\n" if torn else "")
    made = dict(heads)
    for mark, part in enumerate(PARTS, start=1):
        gone, new = changes[part]
        described = part == "rest" and manifest is not None and manifest != known.manifest()
        parent = heads.get(part)
        if parent is not None and not (gone or new or described):
            continue
        parent = parent or job["heads"].get(part)
        stream.commit(NEW_REFS[part], mark, message, job["when"], parent, afresh=not heads)
        for path in gone if heads else ():
            stream.delete(path)
        for path in new:
            entry = table.entries[path]
            there = placed(path, link=entry.kind == "link")[1]
            stream.modify(there, entry.git_mode, entry.content)
        if part == "rest" and manifest is not None:
            stream.write(MANIFEST, manifest)
        made[part] = stream.made(mark)
    return made


# ---------------------------------------------------------------------- restoring one


def _restore(job: dict[str, Any], deadline: float) -> dict[str, Any]:
    listings = {
        part: _git(job, "ls-tree", "-r", "-l", "-z", "--full-tree", job["commits"][part])
        for part in PARTS
        if job["commits"].get(part)
    }
    contents = _git(job, "cat-file", "--batch")
    assert contents.stdin is not None
    assert contents.stdout is not None
    root = os.open(job["workspace"], FOLDER)
    large_from = None
    if job.get("large_from"):
        with contextlib.suppress(FileNotFoundError):  # of a workspace that was deleted
            large_from = os.open(job["large_from"], FOLDER)
    _as_owner(root)
    tree = StoredTree(contents.stdin, contents.stdout)
    for part, listing in listings.items():
        assert listing.stdout is not None
        tree.add(part, listing.stdout.read())  # type: ignore[arg-type]
        if listing.wait() != 0:
            raise OSError(f"git ls-tree ended with {listing.returncode}")
    most = job["max_entries"]
    writer = TreeWriter(
        tree,
        deadline=deadline,
        max_entries=most,
        only=_only(job),
        keep_objects=job.get("keep_objects", False),
        large_from=large_from,
        keep_free=job.get("keep_free", 0),
    )
    writer.write(root)
    if job.get("branches"):
        begin_branch(root, *job["branches"])
    contents.stdin.close()
    if contents.wait() != 0:
        raise OSError(f"git cat-file ended with {contents.returncode}")
    return {
        "status": "restored",
        "written": writer.written,
        "removed": writer.removed,
        "missing": dict(list(writer.missing.items())[:_SHOWN]),
        "missing_count": len(writer.missing),
    }
