"""Documents of this release: in the package, or in `docs/` of a checkout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from oubliette.errors import NotFound, did_you_mean
from oubliette.ids import shown

_PACKAGE: Final = Path(__file__).resolve().parents[2]
_BUNDLED: Final = _PACKAGE / "_bundled" / "docs"


def names() -> list[str]:
    """The names of all documents.

    Raises:
        NotFound: this installation has none.
    """
    return sorted(each.stem for each in _folder().glob("*.md"))


def text(name: str) -> str:
    """The document of this name, in Markdown.

    Raises:
        NotFound: there is none; suggests one that is.
    """
    known = names()
    if name not in known:
        raise NotFound(
            f"there is no document {shown(name)}",
            hint=f"{did_you_mean(name, known)}oubliette docs lists them",
        )
    return (_folder() / f"{name}.md").read_text(encoding="utf-8")


def title(name: str) -> str:
    """The heading of a document."""
    return text(name).partition("\n")[0].removeprefix("# ")


def tools() -> list[str]:
    """The names of all tools: to load the tools themselves takes longer than a shell may wait."""
    return re.findall(r"^### ([a-z_]+)$", text("tools"), re.MULTILINE)


def _folder() -> Path:
    for each in (_BUNDLED, _PACKAGE.parent / "docs"):
        if (each / "tools.md").is_file():
            return each
    raise NotFound("this installation has no documents", hint="install the wheel, or a checkout")
