"""A registry on this machine: the few requests of OCI distribution v2 that a pull makes.

Plain HTTP on 127.0.0.1, which docker accepts as it is, and podman by its configuration.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import secrets
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self, cast

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
HOLD_SECONDS = 30.0


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer(size: int) -> tuple[bytes, str]:
    """A compressed layer with one file, and the digest of what is compressed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        entry = tarfile.TarInfo("data")
        entry.size = size
        tar.addfile(entry, io.BytesIO(secrets.token_bytes(size)))
    return gzip.compress(out.getvalue(), 1), digest(out.getvalue())


class Registry:
    """Serves one image, `shop/agent:1`; what it does besides is said by its attributes."""

    NAME = "shop/agent"

    def __init__(self) -> None:
        self.login: tuple[str, str] | None = None
        """User and password that it wants."""
        self.hold = threading.Event()
        """Second half of the last layer is sent when it is set."""
        self.hold.set()
        self.requests: list[str] = []
        self.blobs: dict[str, bytes] = {}
        layers = [layer(40_000), layer(2_000_000)]
        self.last = digest(layers[-1][0])
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Labels": {"of": "a test"}},
                "rootfs": {"type": "layers", "diff_ids": [inner for _, inner in layers]},
                "history": [{"created": "2026-01-01T00:00:00Z", "created_by": "test"}] * 2,
            }
        ).encode()
        for data in (config, *(packed for packed, _ in layers)):
            self.blobs[digest(data)] = data
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": _described(CONFIG, config),
                "layers": [_described(LAYER, packed) for packed, _ in layers],
            }
        ).encode()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.registry = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def image(self) -> str:
        return f"{self.address}/{self.NAME}:1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hold.set()
        self._server.shutdown()
        self._thread.join(HOLD_SECONDS)
        self._server.server_close()  # joins its threads


def _described(kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "size": len(data), "digest": digest(data)}


class _Server(ThreadingHTTPServer):
    registry: Registry
    daemon_threads = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves in the midst of a layer is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = HOLD_SECONDS

    @property
    def registry(self) -> Registry:
        return cast("_Server", self.server).registry

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def _answer(self, status: int, data: bytes, kind: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        # one request a connection: no thread waits for a next one when a test ends
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()
        if self.command == "HEAD":
            return
        registry = self.registry
        if digest(data) == registry.last and not registry.hold.is_set():
            half = len(data) // 2
            self.wfile.write(data[:half])
            self.wfile.flush()
            registry.hold.wait(HOLD_SECONDS)
            data = data[half:]
        self.wfile.write(data)

    def _refuse(self, status: int, code: str, **headers: str) -> None:
        told = {"errors": [{"code": code, "message": code.lower().replace("_", " ")}]}
        self._answer(status, json.dumps(told).encode(), "application/json", **headers)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        registry = self.registry
        registry.requests.append(f"{self.command} {self.path}")
        if registry.login is not None and not self._logged_in(*registry.login):
            self._refuse(401, "UNAUTHORIZED", WWW_Authenticate='Basic realm="tests"')
        elif self.path.rstrip("/") == "/v2":
            self._answer(200, b"{}", "application/json")
        elif found := re.fullmatch(rf"/v2/{Registry.NAME}/blobs/(.*)", self.path):
            if found[1] in registry.blobs:
                data = registry.blobs[found[1]]
                self._answer(200, data, "application/octet-stream", Docker_Content_Digest=found[1])
            else:
                self._refuse(404, "BLOB_UNKNOWN")
        elif found := re.fullmatch(rf"/v2/{Registry.NAME}/manifests/(.*)", self.path):
            if found[1] in ("1", digest(registry.manifest)):
                self._answer(
                    200,
                    registry.manifest,
                    MANIFEST,
                    Docker_Content_Digest=digest(registry.manifest),
                )
            else:
                self._refuse(404, "MANIFEST_UNKNOWN")
        else:
            self._refuse(404, "NAME_UNKNOWN")

    def _logged_in(self, user: str, password: str) -> bool:
        import base64

        wanted = base64.b64encode(f"{user}:{password}".encode()).decode()
        return self.headers.get("Authorization") == f"Basic {wanted}"
