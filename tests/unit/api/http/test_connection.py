"""HttpConnection: what it sends, which answers it understands, and what is sent twice."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import Any

import anyio
import pytest

from oubliette.api.errors import Closed
from oubliette.api.http import HttpConnection, attempts, connection
from oubliette.errors import (
    Conflict,
    DeadlineExceeded,
    Forbidden,
    InvalidParameter,
    LimitExceeded,
    NotFound,
    OublietteError,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from tests.unit.api.http.scripted_server import (
    RESULT,
    Request,
    ScriptedServer,
    failed,
    http,
    returned,
    rpc,
    stream,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaked_tasks")]

KEY = "oub_not_to_be_shown"
SOON = 10.0  # seconds that anything here may take


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """No key of the environment, and short pauses."""
    monkeypatch.delenv("OUBLIETTE_KEY", raising=False)
    monkeypatch.delenv("OUBLIETTE_KEY_FILE", raising=False)
    monkeypatch.setattr(attempts, "LONGEST_PAUSE", 0.01)
    caplog.set_level(logging.CRITICAL, "oubliette.http")


def connected(server: ScriptedServer, **more: Any) -> HttpConnection:
    return HttpConnection(server.url, KEY, **more)


async def once(*answers: Any, tool: str = "session_get", **more: Any) -> Any:
    """Call a tool of a server with these answers, once."""
    async with ScriptedServer(*answers) as server, connected(server, reconnect_seconds=0) as remote:
        with anyio.fail_after(SOON):
            return await remote.call(tool, {}, **more)


# ---------------------------------------------------------------------- requests


async def test_a_call_is_one_request_with_the_key_in_its_header() -> None:
    async with ScriptedServer() as server, connected(server) as remote:
        assert await remote.call("project_get", {"project_id": "p", "cursor": None}) == RESULT
    (request,) = server.asked
    assert request.path == "/mcp"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["mcp-protocol-version"] == "2026-07-28"
    assert (request.headers["mcp-method"], request.headers["mcp-name"]) == (
        "tools/call",
        "project_get",
    )
    assert request.arguments == {"project_id": "p"}
    assert "progressToken" not in request.body["params"]["_meta"]


async def test_calls_one_after_the_other_share_a_connection() -> None:
    async with ScriptedServer() as server, connected(server) as remote:
        for _ in range(5):
            await remote.call("session_get", {})
    assert (len(server.asked), server.connections) == (5, 1)


async def test_calls_at_the_same_time_do_not_wait_for_each_other() -> None:
    all_there = asyncio.Event()

    async def together(request: Request) -> None:
        if len(server.asked) == 150:
            all_there.set()
        await all_there.wait()
        await request.write(http(returned({"n": request.arguments["n"]})))

    async with ScriptedServer(*[together] * 150) as server, connected(server) as remote:
        with anyio.fail_after(SOON):
            answers = await asyncio.gather(
                *(remote.call("session_get", {"n": n}) for n in range(150))
            )
    assert answers == [{"n": n} for n in range(150)]


@pytest.mark.parametrize("name", ["söß", "two words", "=?base64?eA==?=", "a\r\nb", ""])
async def test_names_that_fit_into_no_header_are_encoded(name: str) -> None:
    from mcp.shared.inbound import decode_header_value

    async with ScriptedServer() as server, connected(server) as remote:
        await remote.call(name, {})
    assert decode_header_value(server.asked[0].headers["mcp-name"]) == name


@pytest.mark.parametrize("value", [object(), {1, object()}, {(1, 2): 3}, "\ud800"])
async def test_arguments_that_are_no_json_are_refused_before_anything_is_sent(value: Any) -> None:
    async with ScriptedServer() as server, connected(server) as remote:
        with pytest.raises(InvalidParameter, match="arguments: cannot be sent") as refused:
            await remote.call("project_create", {"name": value})
    assert (refused.value.field, server.asked) == ("arguments", [])


async def test_the_key_comes_from_the_environment_where_none_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    file = tmp_path / "key"
    file.write_text("oub_of_file\n", encoding="utf-8")
    monkeypatch.setenv("OUBLIETTE_KEY_FILE", str(file))
    async with ScriptedServer() as server:
        async with HttpConnection(server.url) as remote:
            await remote.call("session_get", {})
        monkeypatch.setenv("OUBLIETTE_KEY", KEY)
        async with HttpConnection(server.url) as remote:
            await remote.call("session_get", {})
    keys = [request.headers["authorization"] for request in server.asked]
    assert keys == ["Bearer oub_of_file", f"Bearer {KEY}"]


# ---------------------------------------------------------------------- answers


async def test_an_answer_may_come_as_a_stream() -> None:
    note = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
    assert await once(stream(note.encode(), returned({"n": 1}))) == {"n": 1}


async def test_progress_is_passed_on_while_the_call_runs() -> None:
    def progress(token: int, **more: Any) -> bytes:
        params = {"progressToken": token, **more}
        return json.dumps(
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        ).encode()

    told: list[str] = []
    answer = stream(
        progress(1, progress=1, message="building"),
        progress(7, progress=2, message="of another call"),
        progress(1, progress=3, total=4),
        returned(),
    )
    assert await once(answer, on_progress=told.append) == RESULT
    assert told == ["building", "3/4"]


async def test_progress_is_asked_for_only_where_someone_listens() -> None:
    async with ScriptedServer() as server, connected(server) as remote:
        await remote.call("session_get", {}, on_progress=print)
    assert server.asked[0].body["params"]["_meta"]["progressToken"] == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [("not_found", NotFound), ("conflict", Conflict), ("limit_exceeded", LimitExceeded)],
)
async def test_a_failure_of_a_tool_has_the_class_of_its_code(
    code: str, kind: type[OublietteError]
) -> None:
    with pytest.raises(kind) as caught:
        await once(http(failed(code=code, message="it is so", hint="do this")))
    assert (caught.value.message, caught.value.hint) == ("it is so", "do this")


async def test_a_failure_names_the_field() -> None:
    with pytest.raises(InvalidParameter) as caught:
        await once(http(failed(code="invalid_parameter", message="limit: no", field="limit")))
    assert caught.value.field == "limit"


async def test_a_failure_without_details_keeps_its_text() -> None:
    content = [{"type": "text", "text": "no"}, {"type": "text", "text": "and no"}]
    with pytest.raises(OublietteError, match="no\nand no"):
        await once(http(rpc({"isError": True, "content": content})))


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (http(b"<h1>", status=404, kind="text/html"), Unavailable, "it answers HTTP 404"),
        (http(b"<h1>", kind="text/html"), Unavailable, "it answers with text/html"),
        (http(b"[]"), Unavailable, "its answer is no JSON object"),
        (http(b"{" * 100_000), Unavailable, "its answer is no JSON object"),
        (http(status=302, location="http://x/"), Unavailable, "it points to http://x/"),
        (http(b"{}"), Unavailable, "without an answer"),
        (stream(), Unavailable, "without an answer"),
        (http(status=401), Unauthenticated, "HTTP 401"),
        (http(status=403), Forbidden, "HTTP 403"),
        (http(status=429, retry_after="7"), RateLimited, "HTTP 429"),
        (http(status=503), Unavailable, "HTTP 503"),
        (None, Unavailable, "disconnected"),
    ],
)
async def test_what_is_no_answer(answer: Any, kind: type[OublietteError], said: str) -> None:
    with pytest.raises(kind, match=said):
        await once(answer)


async def test_an_answer_that_is_cut_off_is_none() -> None:
    async def cut(request: Request) -> None:
        await request.write(http(returned())[:-1])
        raise ConnectionResetError

    with pytest.raises(Unavailable):
        await once(cut)


@pytest.mark.parametrize("answer", [None, "nobody"])
async def test_the_reason_is_that_of_the_network_and_not_of_an_error_before(answer: Any) -> None:
    said = "disconnected" if answer is None else "connection refused"
    async with ScriptedServer(None) as server, connected(server, reconnect_seconds=0) as remote:
        if answer == "nobody":
            await server.__aexit__()
        try:
            raise ValueError("another matter")
        except ValueError:
            with pytest.raises(Unavailable, match=said):
                await remote.call("session_get", {})


async def test_a_long_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_ANSWER", 1000)
    with pytest.raises(Unavailable, match="more than 1000 bytes"):
        await once(http(b" " * 2000))


# ---------------------------------------------------------------------- deadlines and ends


async def test_a_call_ends_at_its_deadline_though_something_comes_all_the_time() -> None:
    left = asyncio.Event()

    async def drip(request: Request) -> None:
        await request.write(stream())
        try:
            while True:
                await request.write(b": wait\n\n")
                await asyncio.sleep(0.01)
        finally:
            left.set()

    async with ScriptedServer(drip) as server, connected(server, timeout=0.2) as remote:
        with pytest.raises(DeadlineExceeded, match=r"did not answer within 0\.2 s"):
            await remote.call("session_get", {})
        async with asyncio.timeout(SOON):
            await left.wait()


async def test_a_call_that_waits_for_news_has_time_for_its_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MARGIN", 0.1)
    async with ScriptedServer() as server, connected(server, timeout=0.2) as remote:
        given = {name: remote._seconds({name: 5}) for name in ("wait_seconds", "max_seconds")}
        assert given == {"wait_seconds": 5.1, "max_seconds": 5.1}
        assert remote._seconds({"wait_seconds": "5"}) == remote._seconds({}) == 0.2


async def test_a_call_that_is_cancelled_closes_its_request() -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> None:
        begun.set()
        await request.client_leaves()
        left.set()

    async with ScriptedServer(wait) as server, connected(server) as remote:
        call = asyncio.create_task(remote.call("session_events", {"wait_seconds": 60}))
        async with asyncio.timeout(SOON):
            await begun.wait()
            call.cancel()
            await left.wait()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await remote.call("session_get", {}) == RESULT


async def test_a_closed_connection_is_not_used_any_more() -> None:
    async with ScriptedServer() as server:
        async with connected(server) as remote:
            await remote.call("session_get", {})
        with pytest.raises(Closed, match="is closed"):
            await remote.call("session_get", {})
        with pytest.raises(Closed):
            await remote.tools()
        await remote.aclose()
    assert len(server.asked) == 1


async def test_a_program_that_is_cancelled_closes_its_connections() -> None:
    left = asyncio.Event()

    async def answer(request: Request) -> None:
        await request.write(http(returned()))
        await request.client_leaves()
        left.set()

    async with ScriptedServer(answer) as server:
        with anyio.CancelScope() as scope:
            async with connected(server) as remote:
                await remote.call("session_get", {})
                scope.cancel()
                await anyio.sleep_forever()
        async with asyncio.timeout(SOON):
            await left.wait()


async def test_closing_ends_open_calls_and_those_that_wait_for_the_server() -> None:
    begun = asyncio.Event()

    async def wait(request: Request) -> None:
        begun.set()
        await request.client_leaves()

    async with ScriptedServer(wait) as server:
        remote = connected(server)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            nowhere = HttpConnection(f"http://127.0.0.1:{taken.getsockname()[1]}", KEY)
            calls = [
                asyncio.create_task(each.call("session_get", {})) for each in (remote, nowhere)
            ]
            async with asyncio.timeout(SOON):
                await begun.wait()
                await remote.aclose()
                await nowhere.aclose()
                ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in ended] == [Closed, Closed]


# ---------------------------------------------------------------------- attempts

READ = "session_events"
WRITE = "session_interrupt"


@pytest.mark.parametrize(
    "loss",
    [
        None,
        stream(),
        http(status=503),
        http(status=502),
        http(failed(code="unavailable", message="the server is stopping")),
        http(failed(code="storage_unavailable", message="the database cannot be read")),
    ],
    ids=["closed", "ended", "503", "502", "stopping", "unstored"],
)
@pytest.mark.parametrize(
    "tool",
    [READ, "caller_listen", "caller_tool_response", "permission_response", "session_spawn"],
)
async def test_what_does_no_harm_is_sent_again(tool: str, loss: Any) -> None:
    async with ScriptedServer(loss) as server, connected(server) as remote:
        with anyio.fail_after(SOON):
            assert await remote.call(tool, {}) == RESULT
    first, second = server.asked
    assert first.arguments == second.arguments


@pytest.mark.parametrize("loss", [None, stream(), http(status=503)])
async def test_other_calls_are_not_sent_again(loss: Any) -> None:
    async with ScriptedServer(loss) as server, connected(server) as remote:
        with pytest.raises(Unavailable):
            await remote.call(WRITE, {})
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "tool", ["project_create", "session_map", "session_message", "session_spawn"]
)
async def test_each_call_has_an_idempotency_key_of_its_own_unless_it_is_given(tool: str) -> None:
    async with ScriptedServer() as server, connected(server) as remote:
        await remote.call(tool, {})
        await remote.call(tool, {"idempotency_key": None})
        await remote.call(tool, {"idempotency_key": "mine"})
    first, second, third = (request.arguments["idempotency_key"] for request in server.asked)
    assert len({first, second, third}) == 3
    assert third == "mine"


@pytest.mark.parametrize("tool", [READ, WRITE])
async def test_a_server_that_is_not_there_yet_is_waited_for(tool: str) -> None:
    async with ScriptedServer() as former:
        pass
    later = ScriptedServer()
    later.port = former.port
    remote = connected(former)
    call = asyncio.create_task(remote.call(tool, {}))
    async with asyncio.timeout(SOON):
        while not remote._calls:
            await asyncio.sleep(0)
        async with later, remote:
            assert await call == RESULT


async def test_what_a_tool_refuses_is_not_sent_again() -> None:
    answer = http(failed(code="not_found", message="no"))
    async with ScriptedServer(answer) as server, connected(server) as remote:
        with pytest.raises(NotFound):
            await remote.call(READ, {})
    assert len(server.asked) == 1


async def test_a_part_of_the_server_that_stays_away_is_asked_for_twice() -> None:
    answer = http(failed(code="unavailable", message="docker does not answer"))
    async with ScriptedServer(answer, answer) as server, connected(server) as remote:
        with pytest.raises(Unavailable, match="docker does not answer"):
            await remote.call("session_spawn", {})
    assert len(server.asked) == 2


async def test_a_server_that_waits_for_its_database_is_asked_as_often_as_it_takes() -> None:
    answers = [http(failed(code="storage_unavailable", message="it is away"))] * 4
    async with ScriptedServer(*answers) as server, connected(server) as remote:
        with anyio.fail_after(SOON):
            assert await remote.call("session_spawn", {}) == RESULT
    assert len(server.asked) == 5


@pytest.mark.parametrize("tool", [READ, WRITE])
async def test_a_server_with_too_many_calls_is_asked_again_when_it_wants(
    tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    real = anyio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr(anyio, "sleep", sleep)
    busy = http(status=429, retry_after="7")
    async with ScriptedServer(busy, busy) as server, connected(server) as remote:
        assert await remote.call(tool, {}) == RESULT
    assert [int(pause) for pause in pauses] == [7, 7]


async def test_a_pause_that_is_longer_than_reconnecting_may_take_is_an_error_at_once() -> None:
    busy = http(status=429, retry_after="61")
    async with ScriptedServer(busy) as server, connected(server) as remote:
        with anyio.fail_after(SOON), pytest.raises(RateLimited) as limited:
            await remote.call(READ, {})
    assert limited.value.retry_after == 61


async def test_a_server_that_does_not_come_back_is_given_up() -> None:
    async with ScriptedServer(*[None] * 1000) as server:
        async with connected(server, reconnect_seconds=0.1) as remote:
            with anyio.fail_after(SOON), pytest.raises(Unavailable):
                await remote.call(READ, {})
    assert len(server.asked) > 1


@pytest.mark.parametrize(("timeout", "most"), [(30.0, 30.0), (None, 60.0), (90.0, 60.0)])
async def test_a_deadline_of_the_call_limits_reconnecting_too(
    timeout: float | None, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time passes in the pauses alone: each attempt has the whole of the deadline as well."""
    waited = 0.0
    real = anyio.current_time

    async def sleep(seconds: float) -> None:
        nonlocal waited
        waited += seconds

    monkeypatch.setattr(attempts, "LONGEST_PAUSE", 5.0)
    monkeypatch.setattr(anyio, "sleep", sleep)
    monkeypatch.setattr(anyio, "current_time", lambda: real() + waited)
    async with ScriptedServer(*[None] * 1000) as server, connected(server) as remote:
        with pytest.raises(Unavailable):
            await remote.call(READ, {}, timeout=timeout)
    assert most - 15.0 < waited <= most


@pytest.mark.parametrize(
    ("number", "again"), [(socket.EAI_NONAME, False), (socket.EAI_AGAIN, True)]
)
async def test_a_host_that_there_is_not_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, number: int, again: bool
) -> None:
    asked: list[Any] = []
    real = socket.getaddrinfo

    def unknown(host: Any, *more: Any, **options: Any) -> Any:
        if host not in {"nowhere.invalid", b"nowhere.invalid"}:
            return real(host, *more, **options)
        asked.append(host)
        raise socket.gaierror(number, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    async with HttpConnection("http://nowhere.invalid", KEY, reconnect_seconds=0.1) as remote:
        with pytest.raises(Unavailable, match="no such name"):
            await remote.call(READ, {})
    assert (len(asked) > 1) == again


async def test_a_server_that_was_never_reached_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time passes in the pauses alone."""
    waited = 0.0
    real = anyio.current_time

    async def sleep(seconds: float) -> None:
        nonlocal waited
        waited += seconds

    async with ScriptedServer() as server:
        pass
    monkeypatch.setattr(attempts, "LONGEST_PAUSE", 1.0)
    monkeypatch.setattr(anyio, "sleep", sleep)
    monkeypatch.setattr(anyio, "current_time", lambda: real() + waited)
    async with connected(server) as remote:
        with pytest.raises(Unavailable, match="oubliette serve") as refused:
            await remote.call(READ, {})
    assert "connection refused" in refused.value.message
    assert 2.0 < waited <= connection.FIRST_SECONDS


async def test_a_server_without_encryption_is_not_asked_again_for_it() -> None:
    connections: list[Any] = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(await reader.read(4096))
        writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with HttpConnection(f"https://127.0.0.1:{port}", KEY) as remote:
            with anyio.fail_after(SOON), pytest.raises(Unavailable) as refused:
                await remote.call(READ, {})
    assert "WRONG_VERSION_NUMBER" in refused.value.message.upper().replace(" ", "_")
    assert len(connections) == 1


async def test_an_outage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "oubliette.http")
    async with ScriptedServer(None, None, None) as server, connected(server) as remote:
        await remote.call(READ, {})
    (told,) = caplog.messages
    assert told.endswith("trying again for 60 s")
    assert KEY not in told


async def test_the_tools_are_listed_page_by_page() -> None:
    pages = [
        http(rpc({"tools": [{"name": "a"}], "nextCursor": "1"})),
        None,
        http(rpc({"tools": [{"name": "b"}]})),
    ]
    async with ScriptedServer(*pages) as server, connected(server) as remote:
        assert await remote.tools() == [{"name": "a"}, {"name": "b"}]
    assert server.asked[-1].body["params"]["cursor"] == "1"
