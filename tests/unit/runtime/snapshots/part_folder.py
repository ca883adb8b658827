"""Parts of copies in a folder of a test, and their records in memory."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from oubliette.errors import Conflict
from oubliette.runtime.snapshots.copies import CopyPlace

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.snapshots.copies import CopyName, CopyPart, CopyRecord


class PartFolder:
    """A keeper of parts, as a database or a node is one."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.records: dict[CopyName, CopyRecord] = {}
        self.chosen = "one"

    async def read(self, name: CopyName) -> CopyRecord | None:
        return self.records.get(name)

    async def place(self, name: CopyName, record: CopyRecord | None) -> CopyPlace:
        whole = record is None or record.holder != self.chosen
        return CopyPlace(holder=self.chosen, whole=whole)

    async def put(self, name: CopyName, holder: str, part: CopyPart, file: Path) -> None:
        shutil.copy(file, self.folder / part.id)

    async def get(self, name: CopyName, holder: str, part: CopyPart, file: Path) -> None:
        shutil.copy(self.folder / part.id, file)

    async def publish(self, name: CopyName, record: CopyRecord) -> None:
        before = self.records.get(name)
        if record.version != (before.version if before else 0) + 1:
            raise Conflict("another node has replaced it")
        self.records[name] = record
        for part in self.folder.iterdir():
            if part.name not in {each.id for each in record.parts}:
                part.unlink()

    async def projects(self) -> list[str]:
        return sorted({name.project_id for name in self.records})

    async def forget(self, project_id: str) -> None:
        for name in [name for name in self.records if name.project_id == project_id]:
            del self.records[name]
