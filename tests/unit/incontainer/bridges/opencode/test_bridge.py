"""The bridge to `opencode serve`: lines in, HTTP out, events back; and how it ends."""

from __future__ import annotations

import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.incontainer.bridges.opencode.bridge import message_id
from oubliette.incontainer.bridges.opencode.http import (
    MAX_BODY,
    EventReader,
    ResponseParser,
    UpstreamError,
)
from tests.selection import core
from tests.unit.incontainer.hostclient import ROOT

SECONDS = 30.0  # for whatever is waited for; far more than it takes
FAKE = Path(__file__).with_name("fake_opencode.py")


class BridgeProcess:
    """A bridge to a stand-in; ends with its block."""

    def __init__(self, folder: Path, mode: str = "", program: str | None = None) -> None:
        script = folder / "opencode"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
        script.chmod(0o755)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "oubliette.incontainer",
                "opencode",
                f"--program={program or script}",
            ],
            cwd=ROOT,
            env={**os.environ, "FAKE": mode, "HOME": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.lines: queue.Queue[Any] = queue.Queue()
        self.errors: queue.Queue[Any] = queue.Queue()
        self.reading = threading.Event()
        self.reading.set()
        self.threads = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors)),
        ]
        for thread in self.threads:
            thread.start()

    def _read(self, stream: Any, lines: queue.Queue[Any]) -> None:
        for line in stream:
            self.reading.wait(SECONDS)
            lines.put(line)
        lines.put(None)

    def __enter__(self) -> BridgeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.reading.set()
        self.process.kill()
        self.process.wait(SECONDS)
        for thread in self.threads:
            thread.join(SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()  # type: ignore[union-attr]

    def send(self, **request: Any) -> None:
        self.write(json.dumps(request).encode() + b"\n")

    def write(self, data: bytes) -> None:
        self.process.stdin.write(data)  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]

    def line(self) -> Any:
        found = self.lines.get(timeout=SECONDS)
        return None if found is None else json.loads(found)

    def answer(self, request_id: str) -> Any:
        while (line := self.line()) is not None:
            if line.get("id") == request_id:
                return line
        raise AssertionError(f"no answer to {request_id}")

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        self.send(id=path, method=method, path=path, **({"body": body} if body else {}), **more)
        return self.answer(path)

    def emit(self, **told: Any) -> None:
        self.send(id="emit", method="POST", path="/emit", body=told)

    def serving(self) -> BridgeProcess:
        assert self.line() == {"bridge": "serving"}
        return self

    def child(self) -> int:
        """The stand-in's pid; it says so on standard error, which is the bridge's."""
        while (line := self.errors.get(timeout=SECONDS)) is not None:
            if found := re.match(rb"pid (\d+)", line):
                return int(found[1])
        raise AssertionError("it did not start")

    def ended(self) -> int:
        return self.process.wait(SECONDS)


def gone(pid: int) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], SECONDS)[0])
    finally:
        os.close(fd)


@pytest.fixture
def bridge(tmp_path: Path):
    with BridgeProcess(tmp_path) as process:
        yield process.serving()


def test_requests_are_made_in_order_and_answered_by_their_ids(bridge: BridgeProcess) -> None:
    for number in range(5):
        bridge.send(
            id=f"r{number}", method="POST", path=f"/{number}", body={"n": number, "é": "\n"}
        )
    for number in range(5):
        assert bridge.line() == {
            "id": f"r{number}",
            "status": 200,
            "body": {"path": f"/{number}", "got": {"n": number, "é": "\n"}},
        }
    assert bridge.ask("GET", "/nowhere") == {
        "id": "/nowhere",
        "status": 404,
        "body": {"name": "NotFoundError"},
    }


def test_a_request_that_came_before_the_server_was_there_waits_for_it(tmp_path: Path) -> None:
    with BridgeProcess(tmp_path, "late") as bridge:
        bridge.send(id="early", method="POST", path="/x")
        bridge.serving()
        assert bridge.answer("early")["status"] == 200


def test_the_password_is_in_no_environment_and_no_command_line(bridge: BridgeProcess) -> None:
    assert bridge.ask("POST", "/x")["status"] == 200  # which it is not without the password
    child = bridge.child()
    environ = Path(f"/proc/{child}/environ").read_bytes()
    assert b"OUBLIETTE_GUARD=" in environ
    assert b"PASSWORD" not in environ
    assert not re.search(rb"[0-9a-f]{64}", environ)
    for pid in (child, bridge.process.pid):
        assert not re.search(rb"[0-9a-f]{64}", Path(f"/proc/{pid}/cmdline").read_bytes())


def test_a_server_that_ran_no_guard_is_not_used(tmp_path: Path) -> None:
    with BridgeProcess(tmp_path, "unguarded") as bridge:
        failed = bridge.line()
        assert failed["bridge"] == "failed"
        assert "did not run the guard" in failed["reason"]
        assert "trust_repository" in failed["reason"]
        assert bridge.process.wait(SECONDS) == 1


def test_events_are_passed_on_as_they_are_but_for_heartbeats(bridge: BridgeProcess) -> None:
    event = {"id": "evt_1", "type": "message.updated", "properties": {"text": 'a "b"\n  é'}}
    bridge.emit(events=[event, {"type": "server.heartbeat", "properties": {}}, {"type": "last"}])
    assert bridge.answer("emit")["status"] == 200
    assert bridge.line() == {"event": event}
    assert bridge.line() == {"event": {"type": "last"}}


def test_a_stamp_makes_a_message_id_of_now(bridge: BridgeProcess) -> None:
    answer = bridge.ask("POST", "/x", {"parts": []}, stamp="oub00000000007")
    got = answer["body"]["got"]
    assert re.fullmatch(r"msg_[0-9a-f]{12}oub00000000007", got["messageID"])
    assert got["parts"] == []


def test_a_request_about_an_earlier_message_is_not_made(bridge: BridgeProcess) -> None:
    first, second = "oub00000000001", "oub00000000002"
    assert bridge.ask("POST", "/early", newest=first)["status"] == 200
    bridge.ask("POST", "/x", {"parts": []}, stamp=first)
    assert bridge.ask("POST", "/abort", newest=first)["status"] == 200
    bridge.ask("POST", "/y", {"parts": []}, stamp=second)
    late = bridge.ask("POST", "/late", newest=first)
    assert late == {"id": "/late", "error": "it is about an earlier message"}
    assert bridge.ask("POST", "/after", newest=second)["status"] == 200


def test_of_a_long_conversation_the_ids_are_passed_on(bridge: BridgeProcess) -> None:
    assert "error" in bridge.ask("GET", "/messages/20")
    answer = bridge.ask("GET", "/messages/20", ids=True)
    assert answer["body"] == [f"msg_{number}" for number in range(20)]
    other = bridge.ask("GET", "/nowhere", ids=True)
    assert (other["status"], other["body"]) == (404, {"name": "NotFoundError"})


@given(st.floats(0, 4e9), st.floats(0.001, 1e6))
def test_a_later_message_has_a_higher_id(seconds: float, later: float) -> None:
    if (seconds * 1000) // (1 << 36) == ((seconds + later) * 1000) // (1 << 36):  # OpenCode's clock
        assert message_id(seconds, "a" * 14) <= message_id(seconds + later, "a" * 14)


def test_a_broken_event_stream_is_made_anew_and_said(bridge: BridgeProcess) -> None:
    bridge.emit(events=[{"type": "a"}], cut=True)
    assert bridge.answer("emit")["status"] == 200
    assert bridge.line() == {"event": {"type": "a"}}
    bridge.send(id="waits", method="POST", path="/x")
    lines = [bridge.line(), bridge.line()]
    assert {"bridge": "again"} in lines
    assert [line["status"] for line in lines if line.get("id") == "waits"] == [200]
    bridge.emit(events=[{"type": "b"}])
    assert bridge.answer("emit")["status"] == 200
    assert bridge.line() == {"event": {"type": "b"}}


def test_a_server_that_dies_has_its_last_words_passed_on_and_its_end_told(
    bridge: BridgeProcess,
) -> None:
    bridge.emit(many=200, die=signal.SIGKILL)
    heard = []
    while (line := bridge.line()) is not None:
        heard += [line["event"]["properties"]["n"]] if "event" in line else []
    assert heard == list(range(200))
    assert bridge.ended() == -signal.SIGKILL


def test_a_server_that_does_not_start_is_told_by_its_exit_code(tmp_path: Path) -> None:
    with BridgeProcess(tmp_path, "refuse") as bridge:
        assert bridge.line() is None
        assert bridge.ended() == 3
        assert b"no, not today" in bridge.errors.get(timeout=SECONDS)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with BridgeProcess(tmp_path, program="/nonexistent/opencode") as bridge:
        assert bridge.ended() == 127
        assert b"/nonexistent/opencode" in bridge.errors.get(timeout=SECONDS)


def test_an_argument_that_is_not_known_is_refused() -> None:
    command = [sys.executable, "-m", "oubliette.incontainer", "opencode", "serve"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=SECONDS, check=False)
    assert done.returncode == 2
    assert b"--program=PATH" in done.stderr


@pytest.mark.parametrize("mode", core([""], ["", "stubborn"]))
def test_the_server_ends_when_input_does(tmp_path: Path, mode: str) -> None:
    with BridgeProcess(tmp_path, mode) as bridge:
        child = bridge.serving().child()
        bridge.process.stdin.close()  # type: ignore[union-attr]
        assert bridge.ended() == 0
        assert gone(child)


def test_the_server_ends_with_a_bridge_that_is_told_to(bridge: BridgeProcess) -> None:
    child = bridge.child()
    bridge.process.terminate()
    assert bridge.ended() == 0
    assert gone(child)


def test_the_server_ends_with_a_bridge_that_is_killed(bridge: BridgeProcess) -> None:
    child = bridge.child()
    bridge.process.kill()
    assert gone(child)


@pytest.mark.parametrize(
    "line", [b"no json", b"[1]", b"{}", b'{"path": 7}', b"\xff\xfe", b"[" * 100_000]
)
def test_a_line_that_is_no_request_is_said_and_the_next_one_is_made(
    bridge: BridgeProcess, line: bytes
) -> None:
    bridge.write(line + b"\n\n")
    assert bridge.line()["bridge"] == "unreadable"
    assert bridge.ask("POST", "/x")["status"] == 200


def test_an_answer_that_is_none_is_told_and_the_next_request_is_made(
    bridge: BridgeProcess,
) -> None:
    assert "mid-answer" in bridge.ask("GET", "/broken")["error"]
    assert bridge.ask("GET", "/text") == {
        "id": "/text",
        "status": 500,
        "body": {"text": "no json\n at all"},
    }
    assert str(MAX_BODY + 2) in bridge.ask("GET", f"/large/{MAX_BODY}")["error"]
    assert len(bridge.ask("GET", "/large/1000000")["body"]) == 1_000_000
    assert "URL" in bridge.ask("GET", "/\u20ac")["error"]
    assert bridge.ask("POST", "/x")["status"] == 200


def test_an_event_that_is_too_long_for_a_line_is_told_by_its_size(bridge: BridgeProcess) -> None:
    bridge.emit(long=MAX_BODY, events=[])
    bridge.emit(events=[{"type": "next"}])
    lines = [bridge.line() for _ in range(4)]
    (size,) = [line["oversize"] for line in lines if "oversize" in line]
    assert size > MAX_BODY
    assert {"event": {"type": "next"}} in lines


@pytest.mark.whole
def test_whoever_reads_slowly_holds_the_server_back_and_loses_nothing(
    bridge: BridgeProcess,
) -> None:
    bridge.reading.clear()
    many = 8000  # 80 MB
    bridge.emit(many=many)
    status = Path(f"/proc/{bridge.process.pid}/status")
    bridge.reading.set()
    assert bridge.answer("emit")["status"] == 200
    numbers = [bridge.line()["event"]["properties"]["n"] for _ in range(many)]
    assert numbers == list(range(many))
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1])  # type: ignore[index]
    assert peak < 150_000


# ------------------------------------------------------------------ the parsers

BODIES = st.binary(max_size=300)
CUTS = st.lists(st.integers(0, 2000), max_size=8)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in zip(edges, edges[1:], strict=False)]


def chunked(body: bytes, places: list[int]) -> bytes:
    pieces = [b"%x;ext=1\r\n%s\r\n" % (len(piece), piece) for piece in cut(body, places)]
    return b"".join(pieces) + b"0\r\n\r\n"


@given(BODIES, CUTS, CUTS, st.sampled_from(["length", "chunks", "end"]))
def test_an_answer_is_the_same_however_it_is_cut(
    body: bytes, places: list[int], chunks: list[int], how: str
) -> None:
    head = b"HTTP/1.1 207 Multi\r\nX: y\r\n"
    if how == "length":
        data = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    elif how == "chunks":
        data = head + b"transfer-encoding: CHUNKED\r\n\r\n" + chunked(body, chunks)
    else:
        data = head + b"\r\n" + body
    response = ResponseParser()
    assert b"".join(response.feed(piece) for piece in cut(data, places)) == body
    assert response.status == 207
    assert response.done is (how != "end")
    response.ended()


@given(st.binary(max_size=400), CUTS)
def test_no_bytes_of_a_server_can_do_worse_than_be_refused(data: bytes, places: list[int]) -> None:
    response = ResponseParser()
    try:
        for piece in cut(data, places):
            response.feed(piece)
        response.ended()
    except UpstreamError:
        pass


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=60), max_size=6
    ),
    CUTS,
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_events_are_the_same_however_they_are_cut(
    texts: list[str], places: list[int], newline: bytes
) -> None:
    told = [text.encode() for text in texts if text]
    data = b"".join(
        b"id: 1" + newline + b"data: " + text + newline + newline + b": comment" + newline
        for text in told
    )
    reader = EventReader(limit=100)
    found = [event for piece in cut(data, places) for event in reader.feed(piece)]
    assert len(found) == len(told)
    for event, text in zip(found, told, strict=True):
        assert event == text.lstrip(b" ") or (isinstance(event, int) and event > 100)
