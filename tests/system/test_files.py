"""The tools for files of a workspace, over a real server: `file_list read write delete`."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.api.files.file_calls import FileCalls
from tests.callers import ToolFailed
from tests.consent import delete_with_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.system.conftest import Done
    from tests.system.site import Site

pytestmark = pytest.mark.anyio


class Files:
    """The files of a project's default workspace, by the tools and by their paths on this machine."""

    def __init__(self, site: Site, project: str, folder: Path) -> None:
        self.site = site
        self.project = project
        self.folder = folder

    async def call(self, tool: str, path: str | None = None, **more: Any) -> dict[str, Any]:
        arguments = more if path is None else {"path": path, **more}
        return await self.site.eyes.call(tool, project_id=self.project, **arguments)

    async def refused(self, tool: str, path: str | None = None, **more: Any) -> str:
        with pytest.raises(ToolFailed) as caught:
            await self.call(tool, path, **more)
        return str(caught.value)

    async def names(self, path: str = "", **more: Any) -> list[str]:
        return [entry["name"] for entry in (await self.call("file_list", path, **more))["entries"]]

    async def shell(self, command: str) -> str:
        done = await self.site.eyes.call("container_exec", project_id=self.project, command=command)
        assert done["exit_code"] == 0, done
        return str(done["stdout"])


@pytest.fixture(scope="module")
async def files(shared_site: Site) -> AsyncIterator[Files]:
    site = shared_site
    made = await site.eyes.call("project_create", name="files", init_git=False)
    where = site.server.home / "projects" / made["id"] / "workspaces"
    yield Files(site, made["id"], where / made["default_workspace_id"])
    await site.eyes.call("container_stop", project_id=made["id"], force=True)
    await delete_with_all(site.eyes.call, made["id"])


async def test_a_file_is_written_read_listed_and_deleted(files: Files) -> None:
    saved = await files.call("file_write", "notes/today.txt", text="Grüße\n")
    assert (saved["created"], saved["size"]) == (True, 8)
    assert await files.shell("cat notes/today.txt; stat -c %a notes/today.txt") == "Grüße\n644\n"
    found = await files.call("file_read", "notes/today.txt")
    assert (found["content"], found["encoding"], found["next_offset"]) == ("Grüße\n", "text", None)
    assert found["version"] == saved["version"]
    (entry,) = (await files.call("file_list", "notes"))["entries"]
    assert (entry["name"], entry["kind"], entry["size"]) == ("today.txt", "file", 8)
    assert (await files.call("file_delete", "notes/today.txt"))["deleted"] == 1
    assert await files.names("notes") == []
    assert "does not exist" in await files.refused("file_read", "notes/today.txt")


async def test_any_bytes_come_back_as_they_were_and_in_ranges(files: Files) -> None:
    content = bytes(range(256)) * 1200
    data = base64.b64encode(content).decode()
    await files.call("file_write", "random.bin", data=data)
    read = b""
    at: int | None = 0
    while at is not None:
        page = await files.call("file_read", "random.bin", offset=at)
        assert page["encoding"] == "base64"
        read += base64.b64decode(page["content"])
        at = page["next_offset"]
    assert read == content
    middle = await files.call("file_read", "random.bin", offset=1000, length=10)
    assert base64.b64decode(middle["content"]) == content[1000:1010]
    beyond = await files.call("file_read", "random.bin", offset=10**9)
    assert (beyond["content"], beyond["length"], beyond["next_offset"]) == ("", 0, None)


async def test_a_range_of_text_never_ends_within_a_character(files: Files) -> None:
    await files.call("file_write", "euro.txt", text="€" * 5)
    first = await files.call("file_read", "euro.txt", length=4)
    assert (first["content"], first["length"], first["next_offset"]) == ("€", 3, 3)
    rest = await files.call("file_read", "euro.txt", offset=3)
    assert rest["content"] == "€" * 4


async def test_a_large_file_comes_in_pieces_and_appears_with_the_last_one(files: Files) -> None:
    parts = [os.urandom(400_000) for _ in range(3)]
    place = 0
    for number, part in enumerate(parts):
        assert "large.bin" not in await files.names()
        done = await files.call(
            "file_write",
            "large.bin",
            data=base64.b64encode(part).decode(),
            upload="one",
            offset=place,
            final=number == 2,
        )
        place += len(part)
        assert done["size"] == place
        assert (done["version"] is None) == (number < 2)
    assert (files.folder / "large.bin").read_bytes() == b"".join(parts)
    assert not [name for name in await files.names() if name.startswith(".oubliette-")]
    gap = await files.refused(
        "file_write", "large.bin", text="x", upload="two", offset=5, final=True
    )
    assert "0 bytes of this upload have arrived" in gap


async def test_a_piece_that_is_sent_twice_counts_once(files: Files) -> None:
    for offset, text, final in ((0, "abc", False), (3, "de", False), (3, "de", False)):
        await files.call(
            "file_write", "twice.txt", text=text, upload="t", offset=offset, final=final
        )
    await files.call("file_write", "twice.txt", text="f", upload="t", offset=5)
    assert (await files.call("file_read", "twice.txt"))["content"] == "abcdef"


async def test_an_expected_version_keeps_two_writers_from_undoing_each_other(
    files: Files,
) -> None:
    first = await files.call("file_write", "shared.txt", text="one", expected_version="absent")
    again = await files.refused("file_write", "shared.txt", text="x", expected_version="absent")
    assert "exists already" in again
    await files.shell("echo two > shared.txt")
    late = await files.refused(
        "file_write", "shared.txt", text="x", expected_version=first["version"]
    )
    assert "was changed since" in late
    assert (await files.call("file_read", "shared.txt"))["content"] == "two\n"


async def test_of_many_writers_one_wins_whole(files: Files) -> None:
    contents = [str(number) * 200_000 for number in range(8)]
    answers = await asyncio.gather(
        *(files.call("file_write", "race.txt", text=text) for text in contents)
    )
    assert sum(answer["created"] for answer in answers) == 1
    assert (files.folder / "race.txt").read_text() in contents
    created = await asyncio.gather(
        *(
            files.call("file_write", "once.txt", text=text, expected_version="absent")
            for text in contents
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(answer, dict) for answer in created) == 1


async def test_permissions_stay_and_a_file_can_be_made_executable(files: Files) -> None:
    await files.call("file_write", "run.sh", text="#!/bin/sh\necho ran\n", executable=True)
    assert await files.shell("./run.sh") == "ran\n"
    await files.call("file_write", "run.sh", text="#!/bin/sh\necho again\n")
    assert await files.shell("./run.sh") == "again\n"


async def test_links_lead_as_far_as_the_workspace_and_no_further(files: Files) -> None:
    await files.call("file_write", "inner/real.txt", text="inside")
    await files.shell(
        "ln -s inner/real.txt near; ln -s ../inner/real.txt inner/back;"
        ' ln -s "$OUBLIETTE_WORKSPACE/inner" absolute; ln -s /etc/passwd far; ln -s / rooted;'
        " ln -s ../../.. up; ln -s ring2 ring1; ln -s ring1 ring2; ln -s nowhere broken"
    )
    for path in ("near", "inner/back", "absolute/real.txt"):
        assert (await files.call("file_read", path))["content"] == "inside"
    for path in ("far", "rooted/etc/passwd", "up", "up/etc/passwd"):
        assert "leads out of the workspace" in await files.refused("file_read", path)
    for path in ("far", "rooted/tmp/x", "up/x"):
        assert "leads out of the workspace" in await files.refused("file_write", path, text="x")
    assert "leads out of the workspace" in await files.refused("file_list", "rooted")
    assert "too many links" in await files.refused("file_read", "ring1")
    await files.call("file_write", "near", text="through the link")
    assert (await files.call("file_read", "inner/real.txt"))["content"] == "through the link"
    links = {entry["name"]: entry for entry in (await files.call("file_list"))["entries"]}
    assert (links["far"]["kind"], links["far"]["target"]) == ("link", "/etc/passwd")
    await files.call("file_delete", "near")
    await files.call("file_delete", "absolute", recursive=True)
    assert "real.txt" in await files.names("inner")


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "a/..", "\0", "x" * 5000])
async def test_a_path_that_is_not_in_the_workspace_is_refused(files: Files, path: str) -> None:
    for tool, more in (
        ("file_list", {}),
        ("file_read", {}),
        ("file_write", {"text": ""}),
        ("file_delete", {}),
    ):
        assert "path" in await files.refused(tool, path, **more)


async def test_an_absolute_path_inside_the_workspace_is_the_same_place(files: Files) -> None:
    await files.call("file_write", "known.txt", text="x")
    path = f"/workspace/workspaces/{files.folder.name}/known.txt"
    assert (await files.call("file_read", path))["content"] == "x"


async def test_pipes_sockets_and_folders_are_named_and_never_waited_for(files: Files) -> None:
    await files.shell("mkdir -p odd && mkfifo odd/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(files.folder / "odd", os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{folder}/socket")
        finally:
            os.close(folder)
    kinds = {e["name"]: e["kind"] for e in (await files.call("file_list", "odd"))["entries"]}
    assert kinds == {"pipe": "special", "socket": "special"}
    for name in kinds:
        assert "not a regular file" in await files.refused("file_read", f"odd/{name}")
        assert "not a regular file" in await files.refused("file_write", f"odd/{name}", text="")
    assert "is a folder" in await files.refused("file_read", "odd")
    assert "is a folder" in await files.refused("file_write", "odd", text="")
    assert "not empty" in await files.refused("file_delete", "odd")
    assert (await files.call("file_delete", "odd", recursive=True))["deleted"] == 3


async def test_names_that_are_not_utf_8_can_be_read_and_deleted(files: Files) -> None:
    await files.call("file_write", "latin/x", text="x")
    (files.folder / "latin" / os.fsdecode(b"caf\xe9")).write_text("au lait")
    entries = (await files.call("file_list", "latin"))["entries"]
    (odd,) = [entry for entry in entries if entry["name_base64"]]
    assert odd["name"] == "caf\N{REPLACEMENT CHARACTER}"
    name = base64.b64decode(odd["name_base64"])
    assert name == b"caf\xe9"
    path = base64.b64encode(b"latin/" + name).decode()
    assert (await files.call("file_read", path_base64=path))["content"] == "au lait"
    await files.call("file_write", path_base64=path, text="noir")
    assert (files.folder / "latin" / os.fsdecode(name)).read_text() == "noir"
    await files.call("file_delete", path_base64=path)
    assert await files.names("latin") == ["x"]


async def test_a_folder_of_many_names_comes_in_pages(files: Files) -> None:
    await files.shell("mkdir many; cd many; seq -w 1 2500 | xargs touch")
    names: list[str] = []
    cursor: str | None = None
    while True:
        page = await files.call("file_list", "many", limit=1000, cursor=cursor)
        names += [entry["name"] for entry in page["entries"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert names == [f"{number:04}" for number in range(1, 2501)]


async def test_a_folder_that_changes_between_two_pages_is_read_again(files: Files) -> None:
    await files.shell("mkdir moving; cd moving; touch a b d e")
    first = await files.call("file_list", "moving", limit=2)
    await files.shell("cd moving; rm e; touch c f")
    rest = await files.call("file_list", "moving", limit=10, cursor=first["next_cursor"])
    names = [entry["name"] for page in (first, rest) for entry in page["entries"]]
    assert names == ["a", "b", "c", "d", "f"]


async def test_a_hole_of_a_terabyte_is_read_where_it_is_asked_for(files: Files) -> None:
    await files.shell("truncate -s 1T huge && printf end | dd of=huge bs=1 seek=1T conv=notrunc")
    found = await files.call("file_read", "huge", offset=1 << 40)
    assert (found["content"], found["size"]) == ("end", (1 << 40) + 3)
    await files.call("file_delete", "huge")


async def test_a_missing_permission_is_said_with_the_remedy(files: Files) -> None:
    await files.call("file_write", "closed/x", text="x")
    (files.folder / "closed").chmod(0)
    try:
        if await files.shell("cat closed/x 2>/dev/null || echo closed") == "closed\n":
            assert "not accessible" in await files.refused("file_read", "closed/x")
    finally:
        (files.folder / "closed").chmod(0o777)


KILL = """
for p in /proc/[0-9]*; do
  grep -q "^PPid:.$PPID$" $p/status && tr '\\0' ' ' <$p/cmdline | grep -q '[.]pyz files' &&
    kill -9 ${p#/proc/} && echo killed
done 2>/dev/null
true
"""


async def test_the_program_that_does_it_may_end_at_any_time(files: Files) -> None:
    await files.call("file_write", "before.txt", text="x")
    assert await files.shell(KILL) == "killed\n"
    assert (await files.call("file_read", "before.txt"))["content"] == "x"
    assert await files.shell(KILL) == "killed\n"
    # Of a change nobody can know whether it was made
    assert "is unknown" in await files.refused("file_write", "before.txt", text="y")
    assert (await files.call("file_write", "before.txt", text="z"))["created"] is False


async def test_an_upload_whose_source_fails_leaves_no_piece(files: Files) -> None:
    class Tools:
        async def call(self, tool: str, arguments: Any, **_: Any) -> dict[str, Any]:
            return await files.site.eyes.call(tool, **arguments)

    pieces = [b"x" * 1000, b"y" * 1000]

    async def read(_: int) -> bytes:
        if not pieces:
            raise OSError("the disk is gone")
        return pieces.pop(0)

    with pytest.raises(OSError, match="disk"):
        await FileCalls(Tools(), files.project, None).send("half/file.bin", read)
    assert await files.names("half") == []


async def test_each_isolated_workspace_has_its_own_files(site: Site) -> None:
    made = await site.eyes.call(
        "project_create", name="isolated", init_git=False, workspace_isolation=True
    )
    agent = await site.spawn(
        site.eyes, "exec echo made > made.txt", project_id=made["id"], create_workspace=True
    )
    await agent.turn()
    session = await site.eyes.call("session_get", session_id=agent.session_id)
    assert session["workspace_id"] != made["default_workspace_id"]
    its = {"project_id": made["id"], "workspace_id": session["workspace_id"]}
    found = await site.eyes.call("file_read", path="made.txt", **its)
    assert found["content"] == "made\n"
    default = Files(site, made["id"], site.server.home)
    assert "does not exist" in await default.refused("file_read", "made.txt")
    other = Files(
        site, (await site.eyes.call("project_create", name="other"))["id"], site.server.home
    )
    said = await other.refused("file_read", "made.txt", workspace_id=session["workspace_id"])
    assert "workspace_list" in said


async def test_a_stopped_container_is_started(files: Files) -> None:
    await files.call("file_write", "kept.txt", text="kept")
    await files.site.eyes.call("container_stop", project_id=files.project, force=True)
    assert (await files.call("file_read", "kept.txt"))["content"] == "kept"


@pytest.mark.whole
async def test_cp_copies_to_a_session_and_back(
    site: Site, oubliette: Callable[..., Awaitable[Done]], tmp_path: Path
) -> None:
    agent = await site.spawn(site.eyes, "say hello")
    await agent.turn()
    session = agent.session_id
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "a.txt").write_text("a")
    (tmp_path / "data" / "link").symlink_to("/etc/passwd")
    done = await oubliette("cp", str(tmp_path / "data"), f"{session}:in", "-o", "json")
    assert done.json == {
        "files": 1,
        "bytes": 1,
        "skipped": [str((tmp_path / "data" / "link").absolute())],
    }
    again = await oubliette("cp", str(tmp_path / "data"), f"{session[-8:]}:in")
    assert (again.code, "1 file, 1 byte, copied." in again.err) == (0, True)
    assert "data/link" in again.err
    back = await oubliette("cp", f"{session}:in", str(tmp_path / "back"))
    assert back.code == 0, back.err
    assert (tmp_path / "back" / "deep" / "a.txt").read_text() == "a"
    assert (tmp_path / "back" / "data" / "deep" / "a.txt").read_text() == "a"
    one = await oubliette("cp", f"{session}:in/deep/a.txt", str(tmp_path))
    assert (one.code, (tmp_path / "a.txt").read_text()) == (0, "a")
    for words in (
        (f"{session}:nothing", str(tmp_path)),
        (f"{session}:in", str(tmp_path / "no" / "folder")),
        (str(tmp_path / "nothing"), f"{session}:in"),
        (str(tmp_path / "a.txt"), f"{session}:nowhere/"),
    ):
        missing = await oubliette("cp", *words)
        assert (missing.code, missing.out, missing.err[:6]) == (3, "", "error:")


async def test_cp_needs_one_side_of_a_session(
    oubliette: Callable[..., Awaitable[Done]], tmp_path: Path
) -> None:
    for words in (("a", "b"), ("abcd1234:a", "abcd1234:b"), ("./x:y", "z")):
        done = await oubliette("cp", *words)
        assert (done.code, "SESSION:PATH" in done.err) == (2, True)
