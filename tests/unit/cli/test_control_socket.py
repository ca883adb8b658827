"""The way into a running server: `<home>/control.sock`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from oubliette.actors.container.attached_command import CommandClient
from oubliette.api.control import ControlClient
from oubliette.errors import InvalidParameter, NotFound, Unavailable
from oubliette.json_values import MAX_VALUES
from oubliette.server import control_socket
from oubliette.server.control_socket import ControlSocket
from oubliette.tools.attached_commands import AttachedCommands
from oubliette.tools.spec import CallContext
from tests.unit.tools import toolkit
from tests.unit.tools.toolkit import Bench

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with toolkit.bench() as made:
        yield made


@pytest.fixture
async def opened(bench: Bench, home: Path) -> AsyncIterator[ControlSocket]:
    async with serving(bench, home, {"pid": 7, "url": "http://x/mcp"}) as made:
        yield made


@contextlib.asynccontextmanager
async def serving(
    bench: Bench, home: Path, status: dict[str, Any], on_stop: Callable[[str], object] = str
) -> AsyncIterator[ControlSocket]:
    with control_socket.listening(home) as listener:
        commands = AttachedCommands(bench.services)
        made = ControlSocket(bench.services, home, status, listener, on_stop, commands=commands)
        await made.start()
        yield made
        await made.aclose()


async def client(home: Path, do: Any) -> Any:
    """Run `do(client)` in a thread, as the command line would."""

    def run() -> Any:
        with ControlClient(home) as link:
            return do(link)

    async with asyncio.timeout(30):
        return await asyncio.to_thread(run)


async def raw(home: Path, *lines: bytes) -> list[Any]:
    """Send lines as they are; the answers until the link is closed or all are answered."""
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_unix_connection(
            str(home / "control.sock"), limit=1 << 24
        )
        try:
            for line in lines:
                writer.write(line)
            answers = []
            with contextlib.suppress(ConnectionResetError):  # closed with our line unread
                while len(answers) < len(lines) and (line := await reader.readline()):
                    answers.append(json.loads(line))
            return answers
        finally:
            writer.close()


@pytest.mark.usefixtures("opened")
async def test_a_tool_is_called_with_all_rights(bench: Bench, home: Path) -> None:
    made = await client(
        home, lambda link: link.call("token_create", {"name": "n", "scope": "write"})
    )
    assert bench.keys.verify(made["token"], "http").scope == "write"


@pytest.mark.usefixtures("opened")
async def test_several_calls_go_over_one_link(home: Path) -> None:
    def both(link: ControlClient) -> Any:
        link.call("project_create", {"name": "p"})
        return link.call("project_list", {}), link.status()

    listed, status = await client(home, both)
    assert len(listed["projects"]) == 1
    assert status == {"pid": 7, "url": "http://x/mcp"}


async def test_the_last_choice_for_agents_holds_and_a_wrong_one_is_refused(
    bench: Bench, home: Path
) -> None:
    kept: list[str] = []
    async with serving(bench, home, {}, kept.append):
        for agents in ("end", "keep"):
            await client(home, lambda link, agents=agents: link.decide_for_agents(agents))
        for wrong in ("drop", ["end"], None):
            with pytest.raises(InvalidParameter, match="must be keep or end"):
                await client(home, lambda link, wrong=wrong: link.decide_for_agents(wrong))
    assert kept == ["end", "keep"]


@pytest.mark.usefixtures("opened")
async def test_a_failure_comes_with_its_code_and_hint(home: Path) -> None:
    with pytest.raises(NotFound) as failed:
        await client(home, lambda link: link.call("token_revoke", {"token_id": "tok_" + "0" * 26}))
    assert (failed.value.code, failed.value.exit_code) == ("not_found", 3)
    assert failed.value.hint


@pytest.mark.usefixtures("opened")
async def test_a_link_carries_the_frames_of_a_command_and_closes_with_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(_: Any, context: CallContext, arguments: Any, command: CommandClient) -> None:
        assert (context.principal, arguments) == ("operator", {"command": ["sh"]})
        await command.begin()
        await command.write(b"first, at once")
        while (data := await command.read()) != b"bye":
            await command.write(data.upper())

    def attach(link: ControlClient) -> bytes:
        carries, received = link.attach({"command": ["sh"], "session_id": None})
        carries.sendall(b"hello")
        while not received.endswith(b"HELLO"):
            received += carries.recv(100)
        carries.sendall(b"bye")
        assert carries.recv(100) == b""
        return received

    monkeypatch.setattr(AttachedCommands, "serve", serve)
    assert await client(home, attach) == b"first, at onceHELLO"


@pytest.mark.usefixtures("opened")
async def test_a_command_that_is_refused_is_an_error_of_its_request(home: Path) -> None:
    with pytest.raises(InvalidParameter, match="session_id or project_id"):
        await client(home, lambda link: link.attach({"command": ["sh"]}))
    assert (await raw(home, b'{"id": 1, "verb": "exec", "arguments": [1]}\n'))[0]["error"]


@pytest.mark.usefixtures("opened")
async def test_what_callers_do_is_not_done_here(home: Path) -> None:
    with pytest.raises(NotFound) as failed:
        await client(home, lambda link: link.call("caller_listen", {"caller_id": "a"}))
    assert failed.value.code == "not_found"


@pytest.mark.usefixtures("opened")
async def test_values_that_could_not_be_sent_are_refused_and_the_link_goes_on(home: Path) -> None:
    answers = await raw(
        home,
        b'{"id": 18446744073709551616, "verb": "status"}\n',
        b'{"id": 1, "verb": "call", "tool": ' + b"[" * 900 + b"]" * 900 + b"}\n",
        b'{"id": 2, "verb": "call", "tool": "project_list", "arguments": {"limit": 1e19}}\n',
        b'{"id": 3, "verb": "status"}\n',
    )
    assert [answer["id"] for answer in answers] == [None, 1, 2, 3]
    assert [answer.get("error", {}).get("field") for answer in answers] == [
        "id",
        "tool",
        "limit",
        None,
    ]


@pytest.mark.usefixtures("opened")
async def test_too_many_values_are_refused_with_the_limit(home: Path) -> None:
    line = b'{"id": 1, "verb": "call", "arguments": [' + b"[1]," * 500_000 + b"1]}\n"
    answers = await raw(home, line, b'{"id": 2, "verb": "status"}\n')
    assert answers[0]["error"]["message"] == f"'arguments': more than {MAX_VALUES} values"
    assert answers[1]["id"] == 2


@pytest.mark.parametrize(
    "first", [b"OUBLIETTE-HOST 1 0f\n", b"GET / HTTP/1.1\n", b"[]\n", b'"x"\n', b"7\n", b"\n"]
)
@pytest.mark.usefixtures("opened")
async def test_who_does_not_begin_as_a_client_of_ours_hears_nothing(
    home: Path, first: bytes
) -> None:
    """Another program of the same user may be led here by a link, and send lines of others."""
    assert await raw(home, first, b'{"id": 1, "verb": "status"}\n') == []


@pytest.mark.usefixtures("opened")
async def test_only_the_owner_may_open_it(home: Path) -> None:
    assert stat.S_IMODE((home / "control.sock").stat().st_mode) == 0o600


@pytest.mark.usefixtures("opened")
async def test_a_stranger_is_not_even_heard(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "_is_owner", lambda _: False)
    assert await raw(home, b'{"id":1,"verb":"status"}\n') == []


@pytest.mark.requires("root")
async def test_another_user_is_told_by_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    try:
        writer = type("W", (), {"get_extra_info": lambda *_: ours})()
        assert control_socket._is_owner(writer)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert control_socket._is_owner(writer), "root may read the database anyway"
        monkeypatch.setattr(
            "oubliette.server.control_socket.struct.unpack", lambda *_: (1, 4321, 4321)
        )
        assert not control_socket._is_owner(writer)
    finally:
        ours.close()
        theirs.close()


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"\n", "invalid_parameter"),
        (b"rubbish\n", "invalid_parameter"),
        (b"[1]\n", "invalid_parameter"),
        (b"\xff\xfe\n", "invalid_parameter"),
        (b"[" * 100_000 + b"\n", "invalid_parameter"),
        (b'{"id":1}\n', "not_found"),
        (b'{"id":1,"verb":"reboot"}\n', "not_found"),
        (b'{"id":1,"verb":"call"}\n', "not_found"),
        (b'{"id":1,"verb":"call","tool":7}\n', "not_found"),
        (b'{"id":1,"verb":"call","tool":"project_list","arguments":[]}\n', "invalid_parameter"),
        (b'{"id":1,"verb":"call","tool":"project_get"}\n', "invalid_parameter"),
    ],
)
async def test_a_bad_line_is_answered_and_the_link_goes_on(
    home: Path, line: bytes, code: str
) -> None:
    status = b'{"id":"x","verb":"status"}\n'
    _, answer, after = await raw(home, status, line, status)
    assert answer["error"]["code"] == code
    assert after == {"id": "x", "ok": {"pid": 7, "url": "http://x/mcp"}}


@pytest.mark.usefixtures("opened")
async def test_a_call_that_is_too_long_is_refused_with_the_limit(home: Path) -> None:
    for length in (9, 33):  # MiB
        with pytest.raises(InvalidParameter, match="longer than 8388608 bytes") as refused:
            await client(
                home, lambda link, n=length: link.call("session_list", {"cursor": "x" * (n << 20)})
            )
        assert "oubliette cp" in str(refused.value.hint)


async def test_a_stale_socket_is_replaced_and_taken_away_again(bench: Bench, home: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(home / "control.sock"))
    stale.close()
    with pytest.raises(Unavailable, match="no server runs"):
        await client(home, lambda link: link.status())
    async with serving(bench, home, {"pid": 1}):
        assert await client(home, lambda link: link.status()) == {"pid": 1}
    assert not (home / "control.sock").exists()


async def test_who_comes_before_the_server_runs_is_answered_when_it_does(
    bench: Bench, home: Path
) -> None:
    with control_socket.listening(home) as listener:
        early = asyncio.create_task(client(home, lambda link: link.status()))
        silent = await client(home, lambda link: link.answers(0.05))
        assert not silent
        commands = AttachedCommands(bench.services)
        made = ControlSocket(bench.services, home, {"pid": 3}, listener, str, commands=commands)
        await made.start()
        assert await early == {"pid": 3}
        await made.aclose()
    assert not (home / "control.sock").exists()


async def test_who_waits_for_a_server_that_does_not_come_is_told(home: Path) -> None:
    with control_socket.listening(home):
        link = await asyncio.to_thread(ControlClient, home)
        assert not await asyncio.to_thread(link.answers, 0.01)
    with link, pytest.raises(Unavailable):
        await asyncio.to_thread(link.answers, 5.0)


async def test_a_home_with_a_long_path_works_as_well(bench: Bench, home: Path) -> None:
    long = home / ("d" * 120)
    long.mkdir()
    async with serving(bench, long, {"pid": 1}):
        assert await client(long, lambda link: link.status()) == {"pid": 1}
        assert stat.S_IMODE((long / "control.sock").stat().st_mode) == 0o600
    assert not (long / "control.sock").exists()


async def test_the_end_of_the_server_ends_links_that_are_open(bench: Bench, home: Path) -> None:
    async with asyncio.timeout(30), serving(bench, home, {"pid": 1}) as opened:
        reader, writer = await asyncio.open_unix_connection(str(home / "control.sock"))
        writer.write(b'{"id":1,"verb":"status"}\n')
        await reader.readline()
        await opened.aclose()
        assert await reader.readline() == b""
        writer.close()


@pytest.mark.usefixtures("opened")
async def test_links_are_bounded(home: Path) -> None:
    async with asyncio.timeout(10):
        links = [
            await asyncio.open_unix_connection(str(home / "control.sock"))
            for _ in range(control_socket.MAX_LINKS)
        ]
        for reader, writer in links:
            writer.write(b'{"id":1,"verb":"status"}\n')
            await reader.readline()
        reader, writer = await asyncio.open_unix_connection(str(home / "control.sock"))
        assert await reader.readline() == b""
        for _, each in [*links, (reader, writer)]:
            each.close()
            await each.wait_closed()


class SlowImaging:
    """Builds images, and says how far it is."""

    def image_of(self, kind: str, project: Any = None) -> str:
        return f"localhost/{kind}:1"

    async def rebuild(self, kind: str, progress: Any = None) -> str:
        if progress is not None:
            progress("step 1 of 2: FROM base")
            progress("step 2 of 2: RUN true")
        return f"built {kind}"


@pytest.mark.usefixtures("opened")
async def test_who_asks_for_it_hears_how_far_a_call_is(bench: Bench, home: Path) -> None:
    bench.services.imaging = SlowImaging()  # type: ignore[assignment]
    heard: list[str] = []
    arguments = {"container_type": "base"}
    done = await client(
        home, lambda link: link.call("image_rebuild", arguments, on_progress=heard.append)
    )
    assert (done["state"], done["log_tail"]) == ("built", "built base")
    assert heard == ["step 1 of 2: FROM base", "step 2 of 2: RUN true"]
    quiet = await client(home, lambda link: link.call("image_rebuild", arguments))
    assert quiet == done
    failed = json.dumps(
        {"id": 9, "verb": "call", "tool": "image_rebuild", "arguments": {}, "progress": True}
    )
    (answer,) = await raw(home, failed.encode() + b"\n")
    assert answer["error"]["code"] == "invalid_parameter"


@pytest.mark.usefixtures("opened")
async def test_arguments_that_are_none_are_absent(home: Path) -> None:
    made = await client(
        home, lambda link: link.call("project_create", {"name": "p", "model": None})
    )
    assert made["model"] is None
