"""A package of somebody else that adds an agent, and that agent.

`parrot_program.py` is an agent on the `agent-client-protocol` library; `oubliette_parrot.py` is what
its package says to Oubliette. `install` puts both into a folder as pip would.
"""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent
GOOD = {"parrot": "oubliette_parrot:Parrot"}


def install(folder: Path, points: dict[str, str] | None = None) -> Path:
    """Put the package into `folder`, with these entry points; what to put onto `sys.path`."""
    for name in ("oubliette_parrot.py", "parrot_program.py"):
        shutil.copy(HERE / name, folder / name)
    info = folder / "oubliette_parrot-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: oubliette-parrot\nVersion: 1.2.3\n", encoding="utf-8"
    )
    lines = [f"{name} = {target}" for name, target in (points or GOOD).items()]
    text = "\n".join(["[oubliette.agents]", *lines, ""])
    (info / "entry_points.txt").write_text(text, encoding="utf-8")
    return folder
