"""An engine reached by TCP with TLS: a forwarder from a loopback port to the engine's own socket.

    python -m tests.conformance.tls_proxy FOLDER SOCKET

prints its port; ends with its standard input. `FOLDER` gets `ca.pem`, `cert.pem` and `key.pem` as
in DOCKER_CERT_PATH; who comes without such a certificate is turned away.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

CA = "-x509 -subj /CN=ours -days 2 -keyout ca.key -out ca.pem"
REQUEST = "-subj /CN={name} -keyout {name}.key -out {name}.csr"
SIGN = "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out {name}.pem"


def certify(folder: Path) -> None:
    """Make an authority, and a certificate of each side, in `folder`."""
    new = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n", encoding="ascii")
    commands = [f"{new} {CA}"]
    for name in ("server", "client"):
        commands.append(f"{new} {REQUEST}".format(name=name))
        commands.append(SIGN.format(name=name) + (" -extfile names" if name == "server" else ""))
    for command in commands:
        subprocess.run(
            ["openssl", *command.split()], cwd=folder, check=True, capture_output=True, timeout=60
        )
    (folder / "client.pem").rename(folder / "cert.pem")
    (folder / "client.key").rename(folder / "key.pem")


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


async def serve(folder: Path, path: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "server.pem", folder / "server.key")

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_unix_connection(path)
        both = [
            asyncio.create_task(carry(reader, outer)),
            asyncio.create_task(carry(inner, writer)),
        ]
        # As with TLS everywhere: there is no end of one direction alone.
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        for each in (writer, outer):
            each.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)
    os._exit(0)


class Proxy(NamedTuple):
    """A running forwarder."""

    port: int
    folder: Path


@functools.cache
def proxy(path: str) -> Proxy:
    """Start one for the engine at `path`; it ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    certify(folder)
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.tls_proxy", str(folder), path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert child.stdin is not None
    assert child.stdout is not None

    def end() -> None:
        child.kill()
        child.communicate()

    atexit.register(end)
    return Proxy(int(child.stdout.readline()), folder)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
