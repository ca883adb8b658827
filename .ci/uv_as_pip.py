"""Runs uv with what pip is configured for: whom to trust, which indexes to ask, by which proxy.

    python .ci/uv_as_pip.py UV ARGUMENTS...

A machine behind an authority or an index of its own has pip set up, in pip.conf or by variables,
and uv reads none of that. What uv is told itself (UV_..., uv.toml) counts more than what pip is.
"""
# ruff: noqa: INP001 -- a program, not a package

from __future__ import annotations

import ast
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

INDEXES = {
    "index-url": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "extra-index-url": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "find-links": ("UV_FIND_LINKS",),
}
"""Option of pip → variables of uv that say the same, the first being the one to set."""


def main(command: list[str]) -> int:
    """Run uv; its exit code."""
    told = told_by_pip()
    added = variables(told, os.environ, configured=has_own_configuration(os.environ))
    arguments = ["--no-index"] if told.get("no-index") in {"1", "true", "yes", "on"} else []
    return subprocess.call([*command, *arguments], env={**os.environ, **added})


def told_by_pip() -> dict[str, str]:
    """What `pip install` would go by: its variables before its files, `install` before `global`."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"],
        capture_output=True,
        text=True,
        check=True,
    )
    return read(told.stdout)


def read(listed: str) -> dict[str, str]:
    """Option → value, of the output of `pip config list`."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        name, equals, value = line.partition("=")
        section, _, option = name.partition(".")
        if equals and section in sections:
            sections[section][option] = str(ast.literal_eval(value))
    return {**sections["global"], **sections["install"], **sections[":env:"]}


def variables(
    told: Mapping[str, str], environ: Mapping[str, str], *, configured: bool
) -> dict[str, str]:
    """What uv is to have in its environment beside what is there.

    `configured`: uv has a configuration of its own, which says where packages come from.
    """
    added = _trust(told, environ)
    if "client-cert" in told and "SSL_CLIENT_CERT" not in environ:
        added["SSL_CLIENT_CERT"] = told["client-cert"]
    if told.get("trusted-host") and "UV_INSECURE_HOST" not in environ:
        added["UV_INSECURE_HOST"] = " ".join(told["trusted-host"].split())
    if told.get("proxy"):
        proxies = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}
        if not any(name.upper() in proxies for name in environ):
            added["ALL_PROXY"] = told["proxy"]
    if configured:
        return added
    for option, names in INDEXES.items():
        places = [each for each in told.get(option, "").split() if _is_there(each)]
        if places and not any(name in environ for name in names):
            # uv wants commas between folders and blanks between indexes.
            added[names[0]] = ("," if option == "find-links" else " ").join(places)
    if "UV_INDEX" in added and "UV_INDEX_STRATEGY" not in environ:
        # pip takes the best of all indexes; what is installed is named by its hash in any case.
        added["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return added


def _trust(told: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    # pip has come by with these: requests, which it is built on, knows the variables.
    bundle = told.get("cert") or environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    if bundle:
        return {"SSL_CERT_DIR" if Path(bundle).is_dir() else "SSL_CERT_FILE": bundle}
    named = {"SSL_CERT_FILE", "SSL_CERT_DIR", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS"}
    if named & environ.keys() or not _system_has_certificates():
        return {}
    return {"UV_SYSTEM_CERTS": "1"}


def _system_has_certificates() -> bool:
    if sys.platform in {"darwin", "win32"}:
        return True
    paths = ssl.get_default_verify_paths()
    folder = Path(paths.capath or "/nonexistent")
    return paths.cafile is not None or (folder.is_dir() and any(folder.iterdir()))


def _is_there(place: str) -> bool:
    """False for a folder that is missing, which pip passes over and uv stops at."""
    path = place.removeprefix("file://")
    return not path.startswith("/") or Path(path).exists()


def has_own_configuration(environ: Mapping[str, str]) -> bool:
    """Whether somebody has configured uv on this machine."""
    if "UV_CONFIG_FILE" in environ:
        return True
    own = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return any((folder / "uv" / "uv.toml").exists() for folder in (own, Path("/etc")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
