"""Build the zipapp that is mounted into every container."""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipapp
from pathlib import Path

MODULES = Path(__file__).parent


def build(target: Path) -> Path:
    """Write the zipapp of `incontainer` to `target` and return it."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "incontainer"
        package.mkdir()
        for module in sorted(MODULES.glob("*.py")):
            if module.name != "build.py":
                shutil.copy(module, package / module.name)
        zipapp.create_archive(folder, target, main="incontainer.__main__:main", compressed=True)
    return target


if __name__ == "__main__":
    build(Path(sys.argv[1]))
