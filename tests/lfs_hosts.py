"""LfsHost, a host of git repositories that also keeps files of Git LFS: its batch API, and contents."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import TYPE_CHECKING

from tests.git_hosts import GitHost

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler
    from pathlib import Path

ATTRIBUTES = "*.bin filter=lfs diff=lfs merge=lfs -text\n"
JSON = "application/vnd.git-lfs+json"


def pointer_to(content: bytes) -> str:
    """Return the pointer to a content."""
    digest = hashlib.sha256(content).hexdigest()
    head = "version https://git-lfs.github.com/spec/v1"
    return f"{head}\noid sha256:{digest}\nsize {len(content)}\n"


def lfs_file(storage: Path, content: bytes) -> Path:
    """Put a content where git-lfs keeps it below a folder; return its place."""
    digest = hashlib.sha256(content).hexdigest()
    place = storage / "objects" / digest[:2] / digest[2:4] / digest
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return place


class LfsHost(GitHost):
    """A host that knows the contents in `contents`, by their SHA-256."""

    contents: dict[str, bytes]
    silence: threading.Event | None = None
    """While it is not set, contents are asked for in vain."""

    def keep(self, content: bytes, instead: bytes | None = None) -> str:
        """Keep a content, or send another one in its place; return the pointer to it."""
        self.contents = getattr(self, "contents", {})
        sent = content if instead is None else instead
        self.contents[hashlib.sha256(content).hexdigest()] = sent
        return pointer_to(content)

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        if request.path.endswith("/info/lfs/objects/batch"):
            self._batch(request)
        elif request.path.startswith("/contents/"):
            if self.silence is not None:
                self.silence.wait(60)
            body = self.contents[request.path.rpartition("/")[2]]
            _send(request, 200, "application/octet-stream", body)
        else:
            super()._serve(request)

    def _batch(self, request: BaseHTTPRequestHandler) -> None:
        asked = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        objects = []
        for each in asked["objects"]:
            if each["oid"] in getattr(self, "contents", {}):
                href = {"href": f"{self._scheme}://{self.host}/contents/{each['oid']}"}
                head = request.headers.get("Authorization")
                if head is not None:
                    href["header"] = {"Authorization": head}  # type: ignore[assignment]
                objects.append({**each, "authenticated": True, "actions": {"download": href}})
            else:
                gone = {"code": 404, "message": "Object does not exist on the server"}
                objects.append({**each, "error": gone})
        answer = {"transfer": "basic", "objects": objects}
        _send(request, 200, JSON, json.dumps(answer).encode())


def _send(request: BaseHTTPRequestHandler, status: int, kind: str, body: bytes) -> None:
    request.send_response(status)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
