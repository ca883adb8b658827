"""GitHost, a host of git repositories on loopback: git's own `http-backend` behind a small server."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

if TYPE_CHECKING:
    import ssl

GIT = shutil.which("git")
ENVIRONMENT = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.invalid",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.invalid",
    "LC_ALL": "C",
}


def git(folder: Path, *arguments: str, given: bytes | None = None) -> str:
    """Run git in a folder; return its output."""
    done = subprocess.run(
        [GIT or "git", "-c", "safe.directory=*", "-c", "protocol.file.allow=always", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        input=given,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def commit(folder: Path, files: dict[str, str], message: str = "a change") -> str:
    """Write files in a checkout and commit them; return the commit."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD").strip()


def checkout(folder: Path, files: dict[str, str] | None = None) -> Path:
    """Make a checkout with one commit on the branch main."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, files or {"README": "hello\n"}, "the first one")
    return folder


class GitHost:
    """Serves the repositories below a folder over HTTP, until it is closed.

    Args:
        folder: Its top folder; `NAME.git` in it is at `/NAME.git`.
        password: Password that it wants, with any user name; None: none.
        status: Status with which it answers everything instead.
        tls: Its certificate; None: plain HTTP.
    """

    def __init__(
        self,
        folder: Path,
        *,
        password: str | None = None,
        status: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.folder = folder
        self.password = password
        self.status = status
        self.requests: list[tuple[str, str | None]] = []
        """Paths that were asked for, with the user name and password that came along."""
        self.may_send = threading.Event()
        """Cleared, it keeps what it was asked for until this is set."""
        self.may_send.set()
        self.waits = threading.Event()
        """Set once it keeps something back."""
        host = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do_GET(self) -> None:
                host._answer(self)

            def do_POST(self) -> None:
                host._answer(self)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "http" if tls is None else "https"
        self._thread = threading.Thread(target=self._server.serve_forever, name="git host")

    @property
    def host(self) -> str:
        """Its host and port."""
        return f"127.0.0.1:{self._server.server_port}"

    def url(self, name: str) -> str:
        """Return the URL of a repository."""
        return f"{self._scheme}://{self.host}/{name}.git"

    def add(self, name: str, source: Path) -> Path:
        """Serve a bare clone of a checkout."""
        bare = self.folder / f"{name}.git"
        git(self.folder, "clone", "--quiet", "--bare", str(source), str(bare))
        return bare

    def receiving(self, name: str) -> Path:
        """Let a repository be pushed to; return its folder."""
        bare = self.folder / f"{name}.git"
        git(bare, "config", "http.receivepack", "true")
        return bare

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_send.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        head = request.headers.get("Authorization", "")
        given = base64.b64decode(head.removeprefix("Basic ")).decode() if head else None
        self.requests.append((request.path, given))
        with contextlib.suppress(ConnectionError):  # the client may have been ended
            self._respond(request, given)

    def _respond(self, request: BaseHTTPRequestHandler, given: str | None) -> None:
        if self.status is not None:
            self._refuse(request, self.status)
        elif self.password is not None and (given or "").partition(":")[2] != self.password:
            self._refuse(request, 401)
        else:
            self._serve(request)

    def _refuse(self, request: BaseHTTPRequestHandler, status: int) -> None:
        request.send_response(status)
        if status == 401:
            request.send_header("WWW-Authenticate", 'Basic realm="git"')
        request.send_header("Content-Length", "0")
        request.end_headers()

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        path, _, query = request.path.partition("?")
        size = int(request.headers.get("Content-Length") or 0)
        done = subprocess.run(
            [GIT or "git", "-c", "safe.directory=*", "http-backend"],
            env={
                **ENVIRONMENT,
                "GIT_PROJECT_ROOT": str(self.folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": request.command,
                "CONTENT_TYPE": request.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(size),
                "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            },
            input=request.rfile.read(size),
            capture_output=True,
            check=False,
            timeout=60,
        )
        if request.command == "POST" and not self.may_send.is_set():
            self.waits.set()
            self.may_send.wait(60)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        status, lines = 200, []
        for line in head.decode().splitlines():
            name, _, value = line.partition(": ")
            if name == "Status":
                status = int(value.split()[0])
            else:
                lines.append((name, value))
        request.send_response(status)
        for name, value in lines:
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
