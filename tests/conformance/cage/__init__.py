"""A package of somebody else that adds a container runtime.

`oubliette_cage.py` is what the package says to Oubliette. `install` puts it into a folder as pip
would.
"""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent
GOOD = {"cage": "oubliette_cage:CAGE"}


def install(folder: Path, points: dict[str, str] | None = None) -> Path:
    """Put the package into `folder`, with these entry points; what to put onto `sys.path`."""
    shutil.copy(HERE / "oubliette_cage.py", folder / "oubliette_cage.py")
    info = folder / "oubliette_cage-2.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: oubliette-cage\nVersion: 2.0.1\n", encoding="utf-8"
    )
    lines = [f"{name} = {target}" for name, target in (points or GOOD).items()]
    text = "\n".join(["[oubliette.containers]", *lines, ""])
    (info / "entry_points.txt").write_text(text, encoding="utf-8")
    return folder
