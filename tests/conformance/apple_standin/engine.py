"""Docker's API over its unix socket, as much of it as is needed; podman speaks it too."""

import json
import os
import socket
import urllib.parse

SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")
SECONDS = 60.0


class EngineError(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def find():
    """Path of the engine's socket."""
    named = os.environ.get("APPLE_STANDIN_ENGINE")
    for path in (named,) if named else SOCKETS:
        with socket.socket(socket.AF_UNIX) as link:
            try:
                link.connect(path)
                return path
            except OSError:
                continue
    raise EngineError(500, "the stand-in has no docker and no podman to work with")


_found = None


def _connect(seconds):
    global _found
    if _found is None:
        _found = find()
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(seconds)
    link.connect(_found)
    return link


def _request(method, path, query, body, headers, version):
    if query:
        path += "?" + urllib.parse.urlencode(query)
    lines = [f"{method} {path} HTTP/{version}", "Host: engine", *headers]
    data = b"" if body is None else body
    if body is not None:
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


def call(method, path, query=None, body=None, *, raw=None, seconds=SECONDS, lines=None):
    """One call; the answer, from JSON if it is that. `lines` hears each line as it comes."""
    headers = []
    if body is not None:
        raw = json.dumps(body).encode()
        headers.append("Content-Type: application/json")
    elif raw is not None:
        headers.append("Content-Type: application/x-tar")
    elif method == "POST":
        raw = b""
    with _connect(seconds) as link:
        link.sendall(_request(method, path, query, raw, headers, "1.0"))
        with link.makefile("rb") as answer:
            status = int(answer.readline().split()[1])
            while answer.readline().strip():
                pass
            if lines is not None and status < 400:
                for line in answer:
                    lines(line)
                return None
            said = answer.read()
    if status >= 400:
        try:
            message = json.loads(said)
            message = message.get("message") or message.get("cause") or str(message)
        except (ValueError, AttributeError):
            message = said.decode(errors="replace")
        raise EngineError(status, message.strip())
    try:
        return json.loads(said)
    except ValueError:
        return said


def hijack(path, query=None, body=None):
    """A call whose connection becomes a stream both ways; (socket, what was read already)."""
    headers = ["Content-Type: application/json", "Connection: Upgrade", "Upgrade: tcp"]
    link = _connect(SECONDS)
    link.sendall(_request("POST", path, query, json.dumps(body or {}).encode(), headers, "1.1"))
    head = b""
    while b"\r\n\r\n" not in head:
        piece = link.recv(4096)
        if not piece:
            raise EngineError(500, "the engine closed the stream")
        head += piece
    head, _, rest = head.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    if status not in (101, 200):
        raise EngineError(status, rest.decode(errors="replace").strip() or head.decode())
    link.settimeout(None)
    return link, rest
