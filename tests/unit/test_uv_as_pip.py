"""`make setup` on machines with an authority or a package index of their own: uv does as pip does."""

from __future__ import annotations

import base64
import hashlib
import http.server
import importlib.util
import os
import shutil
import ssl
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.tls_proxy import certify

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "uv_as_pip.py"
UV = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
WHEEL = "oubliette_throwaway-1.0-py3-none-any.whl"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("uv_as_pip", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_pip_install_goes_by_is_read_in_its_order(script) -> None:
    listed = (
        "global.cert='/a/ca.pem'\nglobal.index-url='https://one/'\nglobal.proxy='p:1'\n"
        "install.index-url='https://two/'\n:env:.cert='/b'\"\"\nfreeze.timeout='10'\nodd line\n"
    )
    assert script.read(listed) == {"cert": "/b", "index-url": "https://two/", "proxy": "p:1"}


def test_every_setting_of_pip_has_its_counterpart(script, tmp_path) -> None:
    told = {
        "cert": "/a/ca.pem",
        "client-cert": "/a/me.pem",
        "index-url": "https://one/simple",
        "extra-index-url": "https://two/simple\nhttps://three/simple",
        "find-links": f"{tmp_path} /no/such/folder https://four/",
        "trusted-host": "one\ntwo:80",
        "proxy": "http://proxy:3128",
    }
    assert script.variables(told, {}, configured=False) == {
        "SSL_CERT_FILE": "/a/ca.pem",
        "SSL_CLIENT_CERT": "/a/me.pem",
        "UV_DEFAULT_INDEX": "https://one/simple",
        "UV_INDEX": "https://two/simple https://three/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": f"{tmp_path},https://four/",
        "UV_INSECURE_HOST": "one two:80",
        "ALL_PROXY": "http://proxy:3128",
    }


def test_what_uv_was_told_itself_counts_more(script) -> None:
    told = {"index-url": "https://one/", "extra-index-url": "https://two/", "proxy": "p:1"}
    environ = {"UV_INDEX_URL": "https://own/", "UV_INDEX": "https://x/", "https_proxy": "q:1"}
    added = script.variables(told, {**environ, "SSL_CERT_FILE": "/own.pem"}, configured=False)
    assert added == {}
    kept = script.variables({**told, "cert": "/a.pem"}, {}, configured=True)
    assert kept == {"SSL_CERT_FILE": "/a.pem", "ALL_PROXY": "p:1"}


def test_without_a_word_of_pips_the_machines_certificates_are_used(script, monkeypatch) -> None:
    monkeypatch.setattr(script, "_system_has_certificates", lambda: True)
    assert script.variables({}, {}, configured=False) == {"UV_SYSTEM_CERTS": "1"}
    assert script.variables({}, {"UV_SYSTEM_CERTS": "0"}, configured=False) == {}
    monkeypatch.setattr(script, "_system_has_certificates", lambda: False)
    assert script.variables({}, {}, configured=False) == {}


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Iterator[tuple[str, Path, str]]:
    """A package index behind an authority that nobody knows: URL, the authority, the wheel's hash."""
    folder = tmp_path_factory.mktemp("index")
    certify(folder)
    page = folder / "files" / "simple" / "oubliette-throwaway"
    page.mkdir(parents=True)
    made = wheel(page / WHEEL)
    (page / "index.html").write_text(f'<a href="{WHEEL}#sha256={made}">{WHEEL}</a>')
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder / "files"))

        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def get_request(self) -> Any:
            sock, peer = super().get_request()
            return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), peer

        def handle_error(self, *_: object) -> None:
            """Who does not trust us hangs up; that is what is tried here."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{server.server_address[1]}/simple/", folder / "ca.pem", made
        server.shutdown()
        thread.join()


def wheel(path: Path) -> str:
    """Make the smallest wheel there is; its SHA-256."""
    info = "oubliette_throwaway-1.0.dist-info"
    files = {
        "oubliette_throwaway.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: oubliette-throwaway\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}"
        for name, text in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.skipif(UV is None or not shutil.which("openssl"), reason="uv and openssl are needed")
@pytest.mark.parametrize("told_by", ["pip.conf", "variables"])
@pytest.mark.whole
def test_a_package_comes_from_an_index_that_pip_alone_is_configured_for(
    index, tmp_path, told_by: str
) -> None:
    url, authority, digest = index
    wanted = tmp_path / "lock"
    wanted.write_text(f"oubliette-throwaway==1.0 --hash=sha256:{digest}\n")
    kept = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "c")}
    # /etc/pip.conf is read too, and may name further indexes.
    kept |= {"PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "NO_PROXY": "*"}
    if told_by == "pip.conf":
        (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {url}\ncert = {authority}\n")
        environ = {**kept, "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    else:
        environ = {**kept, "PIP_INDEX_URL": url, "PIP_CERT": str(authority)}
    install = [UV, "pip", "install", "--require-hashes", "--no-config", "-r", str(wanted)]
    install += ["--python", sys.executable, "--target", str(tmp_path / "there")]

    def run(command: list[Any], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=60, check=False
        )

    alone = run(install, {**environ, "UV_DEFAULT_INDEX": url, "UV_HTTP_RETRIES": "0"})
    assert alone.returncode != 0
    assert "UnknownIssuer" in alone.stderr
    done = run([sys.executable, str(SCRIPT), *install], environ)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there" / "oubliette_throwaway.py").exists()
