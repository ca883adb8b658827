"""Image of this machine's own files: for tests, and to try an engine without a registry.

    ensure_image("docker")      # -> "localhost/oubliette/host:3f2a…"

It holds the programs of a small system (shell, core utilities, git, Python), the libraries that
they need, and nothing secret. It fits engines that run on this very machine. It takes about a
second, once: its name is derived from its content.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Final

from oubliette.errors import RuntimeFailure
from oubliette.runtime.containers.docker.client import Engine

NAME: Final = "localhost/oubliette/host"
LDD_SECONDS: Final = 120.0

PROGRAMS: Final = """
bash sh dash ls cat cp mv rm mkdir rmdir ln chmod chown touch true false echo sleep env id whoami
uname date head tail wc sort uniq cut tr tee grep sed awk mawk find xargs ps pgrep kill mktemp stat
du df dd seq basename dirname readlink realpath test [ printf expr nproc timeout tar gzip which
hostname setsid yes git
"""
"""Programs of a small system; `python3` is added by `python`."""
_SEARCH: Final = "/usr/bin:/bin:/usr/sbin:/sbin"
_EXTRAS: Final = (
    "/lib/*-linux-gnu/libnss_files*",
    "/lib/*-linux-gnu/libnss_dns*",
    "/lib/*-linux-gnu/libresolv*",
    # Libraries of foreign programs that none of ours needs: agents are mounted.
    "/lib/*-linux-gnu/libpthread.so.*",
    "/lib/*-linux-gnu/libdl.so.*",
    "/lib/*-linux-gnu/librt.so.*",
    "/lib/*-linux-gnu/libm.so.*",
    "/lib/*-linux-gnu/libutil.so.*",
    "/lib/*-linux-gnu/libgcc_s.so.*",
    "/lib/*-linux-gnu/libstdc++.so.*",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/openssl.cnf",
    "/usr/lib/ssl/cert.pem",
    "/usr/lib/ssl/openssl.cnf",
    "/etc/nsswitch.conf",
    "/usr/lib/os-release",
)
BYTECODE: Final = ".pyc"
_NOT_PYTHON: Final = {"test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3"}
_FOLDERS: Final = """
usr usr/bin usr/sbin usr/lib usr/lib64 usr/local usr/local/bin etc proc sys dev run var var/tmp
var/spool home home/agent root workspace mcp opt tmp
"""
_USERS: Final = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/false\n"
_GROUPS: Final = "root:x:0:\nnogroup:x:65534:\n"


def ensure_image(
    flavour: str,
    host: str | None = None,
    *,
    programs: str = PROGRAMS,
    python: bool = True,
    bytecode: bool = True,
) -> str:
    """Return the image's name on that engine, which makes it if it is missing. Blocks.

    Args:
        flavour: `docker` or `podman`.
        host: the engine's address; None = its usual address.
        programs: programs of this machine to include; missing ones are left out.
        python: with `/usr/bin/python3` and its standard library.
        bytecode: of that library, as packages of a distribution have it; official images of Python
            have none.

    Raises:
        RuntimeFailure: this machine has no `/usr/bin/python3`, or the engine refused.
        EngineMissing: the engine does not answer.
    """
    files = _files(programs.split(), python=python)
    if not bytecode:
        files = [path for path in files if path.suffix != BYTECODE]
    name = f"{NAME}:{_digest(files, bytecode=bytecode)}"
    api = Engine("podman" if flavour == "podman" else "docker", host).connect()
    try:
        if not any(name in (image.get("RepoTags") or ()) for image in api.images(name=NAME)):
            _import(api, _tar(files), name)
    finally:
        api.close()
    return name


def _import(api: Any, data: bytes, name: str) -> None:
    repository, _, tag = name.rpartition(":")
    said = api.import_image_from_data(
        data,
        repository=repository,
        tag=tag,
        changes=["ENV LANG=C.UTF-8", "WORKDIR /workspace", 'CMD ["sh"]'],
    )
    made = re.search(r"(sha256:)?[0-9a-f]{64}", str(said))
    if made is None:
        raise RuntimeFailure(f"the engine does not take the image: {str(said)[-300:]}")
    api.tag(made[0], repository, tag, force=True)  # podman always imports as `latest`


def _files(programs: list[str], *, python: bool) -> list[Path]:
    """Return every file to include, links and their targets."""
    found: dict[Path, None] = {}
    binaries: list[str] = []
    for program in [*programs, *(["python3"] if python else [])]:
        path = shutil.which(program, path=_SEARCH)
        if path is not None:
            _add(found, Path(path))
            binaries.append(os.path.realpath(path))
    if python:
        binaries += _add_python(found)
    for helper in ("git", "git-remote-http", "git-remote-https") if "git" in programs else ():
        path = Path("/usr/lib/git-core", helper)
        if path.exists():
            _add(found, path)
            binaries.append(str(path.resolve()))
    for pattern in _EXTRAS:
        for path in Path("/").glob(pattern[1:]):
            _add(found, path)
    for library in _libraries(binaries):
        _add(found, library)
    return sorted(found)


def _add_python(found: dict[Path, None]) -> list[str]:
    """Add the standard library with its extension modules."""
    python = Path("/usr/bin/python3").resolve()
    if not python.exists():
        raise RuntimeFailure("this machine has no /usr/bin/python3 to make an image of")
    binaries: list[str] = []
    for folder, folders, names in os.walk(Path("/usr/lib") / python.name):
        folders[:] = [name for name in folders if name not in _NOT_PYTHON and "config-" not in name]
        for name in names:
            if folder.endswith("__pycache__") and not name.endswith(BYTECODE):
                continue  # the interpreter is about to write it
            _add(found, Path(folder, name))
            if name.endswith(".so"):
                binaries.append(str(Path(folder, name)))
    return binaries


def _libraries(binaries: list[str]) -> list[Path]:
    elf = [path for path in dict.fromkeys(binaries) if _is_elf(path)]
    done = subprocess.run(
        ["ldd", *elf], capture_output=True, text=True, timeout=LDD_SECONDS, check=False
    )
    # Lines that end with a colon name the binary itself.
    named = re.findall(r"(/[^\s:()]+)(?!:)", done.stdout)
    return [Path(path) for path in dict.fromkeys(named) if os.path.isfile(path)]  # noqa: PTH113


def _is_elf(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _add(found: dict[Path, None], path: Path) -> None:
    """Add a file under its real folder, and each link on the way to its content."""
    place = path.parent.resolve() / path.name
    if place in found or not os.path.lexists(place) or place.is_dir():
        return
    found[place] = None
    if place.is_symlink():
        _add(found, place.parent / place.readlink())


def _digest(files: list[Path], *, bytecode: bool) -> str:
    what = hashlib.sha256(Path(__file__).read_bytes())
    what.update(f"{bytecode}\0".encode())
    for path in files:
        if path.suffix == BYTECODE:
            continue  # derived from the source, and sometimes newer than the image
        state = path.lstat()
        what.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    return what.hexdigest()[:16]


def _folders(files: list[Path]) -> list[str]:
    """Return the folders of the image, parents first: some engines make missing ones 0700."""
    needed = list(_FOLDERS.split())
    for path in files:
        needed += [str(folder).lstrip("/") for folder in reversed(path.parents)]
    return [name for name in dict.fromkeys(needed) if name]


def _tar(files: list[Path]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in _folders(files):
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if name.endswith("tmp") else 0o700 if name == "root" else 0o755
            tar.addfile(entry)
        for name in ("bin", "sbin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.SYMTYPE
            entry.linkname = f"usr/{name}"
            tar.addfile(entry)
        for name, text in (("etc/passwd", _USERS), ("etc/group", _GROUPS)):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
        for path in files:
            _put(tar, path)
    return out.getvalue()


def _put(tar: tarfile.TarFile, path: Path) -> None:
    entry = tar.gettarinfo(str(path), arcname=str(path).lstrip("/"))
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    if entry.issym():
        tar.addfile(entry)
        return
    # A hard link to an included file counts as one more file.
    data = path.read_bytes()
    entry.type, entry.size = tarfile.REGTYPE, len(data)
    tar.addfile(entry, io.BytesIO(data))
