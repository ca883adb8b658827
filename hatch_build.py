"""Puts the zipapp that runs inside containers, and the documents, into the wheel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ZipappHook(BuildHookInterface):
    """Builds `oubliette/_bundled/oubliette.pyz` from `incontainer`, and adds `docs`."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the zipapp; a checkout builds its own when it is needed."""
        if not (Path(self.root) / "oubliette" / "incontainer").is_dir():
            self.app.abort(
                "oubliette/incontainer is not the symbolic link that it is in the repository,"
                " perhaps because git wrote it as a file (core.symlinks is false). On a file system"
                " that has symbolic links:"
                " git config core.symlinks true && git checkout -- oubliette/incontainer"
            )
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        try:
            from oubliette.incontainer.build import build
        finally:
            sys.path.remove(self.root)
        target = build(Path(self.directory) / "oubliette.pyz")
        build_data["force_include"][str(target)] = "oubliette/_bundled/oubliette.pyz"
        build_data["force_include"][str(Path(self.root) / "docs")] = "oubliette/_bundled/docs"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave nothing but the wheel behind."""
        del version, build_data, artifact_path
        (Path(self.directory) / "oubliette.pyz").unlink(missing_ok=True)
