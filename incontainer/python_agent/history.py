"""Earlier turns of a session, kept in its HOME so that they outlive the agent's process."""

from __future__ import annotations

import json
import os

from ..io.json_values import as_object, as_text

MOST_READ = 16 << 20  # bytes of the file that are read; older turns are dropped


class Exchange:
    """One earlier turn: its prompt, the text of its answer, and how it ended."""

    __slots__ = ("answer", "prompt", "status")

    def __init__(self, prompt: str, answer: str, status: str) -> None:
        self.prompt = prompt
        self.answer = answer
        self.status = status

    def __repr__(self) -> str:
        return f"Exchange({self.prompt!r}, {self.answer!r}, {self.status!r})"


class History:
    """File of a session's exchanges, each a line of JSON; only this process writes it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.exchanges = _read(path)

    def add(self, exchange: Exchange) -> None:
        """Append a turn that has ended; what cannot be written is kept in memory."""
        self.exchanges.append(exchange)
        fields = {name: getattr(exchange, name) for name in Exchange.__slots__}
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            with open(os.open(self._path, flags, 0o600), "a", encoding="utf-8") as file:
                file.write(f"\n{json.dumps(fields)}\n")  # a kill may have cut the line before
        except OSError as error:
            os.write(2, f"the history cannot be written: {error}\n".encode())


def _read(path: str) -> list[Exchange]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_READ))
            lines = file.read().splitlines()
    except OSError:
        return []
    found: list[Exchange] = []
    for line in lines:
        try:
            fields = as_object(json.loads(line))
        except (ValueError, RecursionError):
            continue  # the end of a write that a kill has cut
        if fields is not None:
            texts = (as_text(fields.get(name)) for name in ("prompt", "answer", "status"))
            found.append(Exchange(*texts))
    return found
