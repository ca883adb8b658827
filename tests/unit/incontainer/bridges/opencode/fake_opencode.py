"""Stands in for `opencode serve`: its port line, its password, its event stream; told what to do.

It takes its secrets as the guard does, unless FAKE is `unguarded`.

POST /emit {"events": […], "cut": bool, "die": signal}   say these, then break off, or die
POST /echo                                               answers with what it got
GET  /hang, GET /broken, GET /text, GET /large/<bytes>
"""

from __future__ import annotations

import base64
import json
import os
import queue
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GUARD = os.environ.get("OUBLIETTE_GUARD", "")
PASSWORD = os.environ.get("OPENCODE_SERVER_PASSWORD", "")
if GUARD and os.environ.get("FAKE") != "unguarded":
    with os.fdopen(int(GUARD), "r+") as given:
        PASSWORD = json.load(given)["listed"]["OPENCODE_SERVER_PASSWORD"]
        signal.signal(signal.SIGUSR2, lambda *_: None)  # it would hide the password now
        given.truncate(0)
TOKEN = "Basic " + base64.b64encode(f"opencode:{PASSWORD}".encode()).decode()
listeners: list[queue.Queue] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def allowed(self) -> bool:
        if PASSWORD and self.headers.get("Authorization") == TOKEN:
            return True
        self.answer(b'{"name":"Unauthorized"}', 401)
        return False

    def do_GET(self) -> None:
        if not self.allowed():
            return
        if self.path == "/event":
            self.events()
        elif self.path == "/hang":
            threading.Event().wait()
        elif self.path == "/broken":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            self.close_connection = True
        elif self.path == "/text":
            self.answer(b"no json\n at all", 500)
        elif self.path.startswith("/large/"):
            self.answer(b'"' + b"x" * int(self.path[7:]) + b'"')
        elif self.path.startswith("/messages/"):
            long = [{"info": {"id": f"msg_{n}"}, "parts": ["x" * 1_000_000]} for n in range(20)]
            self.answer(json.dumps(long[: int(self.path[10:])]).encode())
        else:
            self.answer(b'{"name":"NotFoundError"}', 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.allowed():
            return
        if self.path == "/emit":
            told = json.loads(body)
            self.answer(b"true")
            for listener in listeners:
                listener.put(told)
        else:
            got = json.loads(body) if body else None
            self.answer(json.dumps({"path": self.path, "got": got}, indent=1).encode())

    def events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        told: queue.Queue = queue.Queue()
        listeners.append(told)
        self.event({"type": "server.connected", "properties": {}})
        while True:
            command = told.get()
            for event in command.get("events", ()):
                self.event(event)
            for number in range(command.get("many", 0)):
                self.event({"type": "n", "properties": {"n": number, "pad": "x" * 10_000}})
            if "long" in command:
                self.event({"type": "long", "properties": {"pad": "x" * command["long"]}})
            if "die" in command:
                os.kill(os.getpid(), command["die"])
            if command.get("cut"):
                listeners.remove(told)
                self.close_connection = True
                self.connection.shutdown(2)
                return

    def event(self, event: object) -> None:
        data = b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def main() -> None:
    assert sys.argv[1:] == ["serve", "--hostname", "127.0.0.1", "--port", "0"], sys.argv
    mode = os.environ.get("FAKE", "")
    if mode == "refuse":
        print("no, not today")
        sys.exit(3)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print("Warning: something", flush=True)
    if mode == "late":
        time.sleep(0.2)
    port = server.server_address[1]
    print(f"opencode server listening on http://127.0.0.1:{port}", flush=True)
    print(f"pid {os.getpid()}", file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
