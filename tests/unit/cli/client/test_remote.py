"""`oubliette call --url`: what is said where no server of ours answers, and where keys come from."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from oubliette.cli.client import remote
from tests.unit.cli.command_line import Run

FIRST_WORDS = ["call"]
KEY = "oub_not_to_be_shown"
RESULT = {"jsonrpc": "2.0", "id": 1, "result": {"structuredContent": {"limits": {}}}}


class Answer:
    """What the server below says next, and what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.headers = {"Content-Type": "application/json"}
        self.body = json.dumps(RESULT).encode()
        self.drips: Callable[[Any], None] | None = None
        self.asked: list[Any] = []


@pytest.fixture
def answer() -> Answer:
    return Answer()


@pytest.fixture
def url(answer: Answer) -> Iterator[str]:
    """A web server that is no server of ours, unless the test says so."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answer.asked.append((self.path, dict(self.headers), json.loads(body)))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)
            if answer.drips is not None:
                answer.drips(self.wfile)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def key(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    del run  # which has cleared it
    monkeypatch.setenv("OUBLIETTE_KEY", KEY)


def test_a_call_is_one_request_with_the_key_in_its_header(
    run: Run, url: str, answer: Answer
) -> None:
    done = run("config_limits", "--url", url, "-o", "json")
    assert (done.code, json.loads(done.out), done.err) == (0, {"limits": {}}, "")
    ((path, headers, body),) = answer.asked
    assert path == "/mcp"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert (body["method"], body["params"]["name"]) == ("tools/call", "config_limits")


def test_the_address_may_come_from_the_environment(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUBLIETTE_URL", f"{url}/mcp")
    assert run("config_limits").code == 0


def test_a_home_on_the_command_line_comes_before_an_address_of_the_environment(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUBLIETTE_URL", "http://127.0.0.1:9/mcp")
    done = run("session_spawn", "project_id=p", "--home", str(home))
    assert done.code == 8
    assert f"no server runs on {home}" in done.err


def test_a_file_with_the_key_comes_before_a_key_of_the_environment(
    run: Run, url: str, answer: Answer, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("oub_from_file\n", encoding="utf-8")
    assert run("config_limits", "--url", url, "--key-file", str(file)).code == 0
    assert answer.asked[0][1]["Authorization"] == "Bearer oub_from_file"


def test_tools_that_only_that_server_knows_are_called(run: Run, url: str, answer: Answer) -> None:
    assert run("tool_of_tomorrow", "--url", url, "count=3", "name=x").code == 0
    assert answer.asked[0][2]["params"]["arguments"] == {"count": 3, "name": "x"}


def test_an_answer_may_come_as_a_stream(run: Run, url: str, answer: Answer) -> None:
    answer.headers = {"Content-Type": "text/event-stream"}
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
    answer.body = (
        f": wait\n\ndata: {json.dumps(note)}\r\n\r\nid: 1\ndata: {json.dumps(RESULT)}\n\n".encode()
    )
    assert json.loads(run("config_limits", "--url", url).out) == {"limits": {}}


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:8080", "must begin with http"),
        ("ftp://127.0.0.1/", "must begin with http"),
        ("http://", "name a host"),
        ("http://[", "cannot be read"),
        ("http://127.0.0.1:99999/", "cannot be read"),
        ("http://me:oub_secret@127.0.0.1/", "a name or a password"),
    ],
)
def test_what_is_no_address(run: Run, address: str, said: str) -> None:
    done = run("config_limits", "--url", address)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "\nhint: " in done.err
    assert "oub_secret" not in done.err


def test_where_nobody_listens(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"
        done = run("config_limits", "--url", address)
    assert done.code == 1
    assert f"{address}: connection refused" in done.err
    assert "hint: is a server running there?" in done.err


def test_a_host_that_there_is_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    done = run("config_limits", "--url", "http://nowhere.invalid/mcp")
    assert done.code == 1
    assert "http://nowhere.invalid/mcp: Name or service not known" in done.err


@pytest.mark.parametrize(
    ("status", "headers", "body", "said"),
    [
        (404, {"Content-Type": "text/html"}, b"<h1>no</h1>", "it answers HTTP 404"),
        (200, {"Content-Type": "text/html"}, b"<h1>hi</h1>", "it answers with text/html"),
        (200, {"Content-Type": "application/json"}, b"[]", "its answer is no JSON object"),
        (302, {"Location": "http://elsewhere/"}, b"", "it points to http://elsewhere/"),
    ],
)
def test_what_is_no_server_of_ours(
    run: Run, url: str, answer: Answer, status: int, headers: dict[str, str], body: bytes, said: str
) -> None:
    answer.status, answer.headers, answer.body = status, headers, body
    done = run("config_limits", "--url", url)
    assert (done.code, done.out) == (1, "")
    assert f"is no Oubliette server: {said}" in done.err
    assert "hint: the address of a server ends in /mcp" in done.err
    assert len(answer.asked) == 1


def test_a_stream_that_ends_without_an_answer(run: Run, url: str, answer: Answer) -> None:
    answer.headers, answer.body = {"Content-Type": "text/event-stream"}, b": wait\n\n"
    done = run("config_limits", "--url", url)
    assert done.code == 1
    assert "it closed the connection without an answer" in done.err


def test_a_wait_ends_though_something_comes_all_the_time(
    run: Run, url: str, answer: Answer
) -> None:
    answer.headers, answer.body = {"Content-Type": "text/event-stream"}, b""
    gone = threading.Event()

    def drip(file: Any) -> None:
        until = time.monotonic() + 20
        try:
            while time.monotonic() < until:
                file.write(b": wait\n\n")
                gone.wait(0.05)
        except OSError:
            gone.set()

    answer.drips = drip
    done = run("config_limits", "--url", url, "--timeout", "300ms")
    assert done.code == 5
    assert "did not answer within 0.3 s" in done.err
    assert gone.wait(20)  # the connection is dropped, which cancels the call


def test_a_full_server_says_so(run: Run, url: str, answer: Answer) -> None:
    answer.status = 429
    error = {"code": -32000, "message": "too many calls in flight"}
    answer.body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    done = run("config_limits", "--url", url)
    assert done.code == 6
    assert "too many calls in flight" in done.err


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ("", 4, "requires an API key"),
        ("two words", 2, "the key: is no API key"),
        ("oub_\u00e9", 2, "the key: is no API key"),
    ],
)
def test_what_is_no_key(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch, given: str, code: int, said: str
) -> None:
    monkeypatch.setenv("OUBLIETTE_KEY", given)
    done = run("config_limits", "--url", url)
    assert done.code == code
    assert said in done.err
    assert not given or given not in done.err


def test_a_key_file_that_there_is_not(run: Run, url: str) -> None:
    done = run("config_limits", "--url", url, "--key-file", "/nowhere/key")
    assert done.code == 2
    assert "/nowhere/key: cannot be read" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--url", "http://x/", "--home", "/tmp"], "give --url or --home"),
        (["--url", "http://x/", "--key", "a", "--key-file", "b"], "give --key or --key-file"),
        (["--key", "a"], "go with --url"),
    ],
)
def test_options_that_do_not_go_together(run: Run, words: list[str], said: str) -> None:
    done = run("config_limits", *words)
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://192.0.2.1/mcp", True),
        ("http://server.example:8080/mcp", True),
        ("http://[2001:db8::1]/mcp", True),
        ("https://server.example/mcp", False),
        ("http://localhost:8080/mcp", False),
        ("http://127.0.0.1:8080/mcp", False),
        ("http://[::1]:8080/mcp", False),
    ],
)
def test_a_key_that_others_could_read_on_its_way_is_warned_of(
    run: Run, monkeypatch: pytest.MonkeyPatch, address: str, shown: bool
) -> None:
    monkeypatch.setattr(remote.RemoteServer, "call", lambda *_, **__: {})
    done = run("config_limits", "--url", address)
    assert done.code == 0
    assert ("without encryption: use https" in done.err) == shown
    assert run("config_limits", "--url", address, "-o", "json").err == ""


def test_the_help_says_who_can_read_a_key_on_a_command_line(run: Run) -> None:
    told = " ".join(run("--help").out.split())
    assert "Every user of this machine can read it on a command line" in told
    assert KEY not in told
