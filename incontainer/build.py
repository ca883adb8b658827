"""Build of the zipapp for every container: `python -m oubliette.incontainer.build X`.

The same sources give the same bytes. Each module is stored with its bytecode for the interpreter
that builds; another version does not accept the magic number and compiles the source. Bytecode
halves the start-up time that every agent waits for.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import os
import sys
import zipfile
from pathlib import Path

MODULES = Path(__file__).resolve().parent
NOT_INSIDE = frozenset(("build.py",))
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the zip format's first day: builds do not differ by their date
UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: hash-based, not to be checked at import
MAIN = """import sys
if sys.version_info < (3, 9):  # in words that an old one understands
    sys.exit("this is Python %d.%d, and Oubliette needs 3.9 or later" % sys.version_info[:2])
from incontainer.__main__ import main
sys.exit(main())
"""


def sources() -> list[Path]:
    """The modules of the zipapp, in a stable order."""
    return sorted(path for path in MODULES.rglob("*.py") if _name(path) not in NOT_INSIDE)


def data_files() -> list[Path]:
    """The files besides the modules, which these read, in a stable order."""
    return sorted(MODULES.rglob("*.json"))


def _name(path: Path) -> str:
    return path.relative_to(MODULES).as_posix()


def fingerprint() -> str:
    """Return sixteen hexadecimal digits that identify the content and the interpreter's version."""
    whole = hashlib.sha256(importlib.util.MAGIC_NUMBER + Path(__file__).read_bytes())
    for path in (*sources(), *data_files()):
        content = path.read_bytes()
        whole.update(f"{_name(path)} {len(content)}\n".encode() + content)
    return whole.hexdigest()[:16]


def content() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        _add(archive, "__main__.py", MAIN.encode())
        for path in sources():
            source = path.read_bytes()
            name = f"incontainer/{_name(path)}"
            _add(archive, name, source)
            # The path in tracebacks is the one inside, or bytes would differ by the checkout
            code = compile(source, name, "exec", dont_inherit=True, optimize=0)
            source_hash = importlib.util.source_hash(source)
            head = importlib.util.MAGIC_NUMBER + UNCHECKED + source_hash
            # Later formats write a reference for what has more than one in this very process.
            bytecode = head + marshal.dumps(code, 2)
            _add(archive, name + "c", bytecode)
        for path in data_files():
            _add(archive, f"incontainer/{_name(path)}", path.read_bytes())
    return b"#!/usr/bin/env python3\n" + file.getvalue()


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, ZIP_EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)


def build(target: Path) -> Path:
    """Write the zipapp to `target` atomically, and return it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    part.write_bytes(content())
    part.chmod(0o755)
    part.replace(target)
    return target


if __name__ == "__main__":
    build(Path(sys.argv[1]))
