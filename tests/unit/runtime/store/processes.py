"""Starts `writing_process` and talks to it with a time limit on every wait."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
WAIT = 20.0


class WritingProcess:
    def __init__(self, path: Path | str, *options: str, failpoint: str = "") -> None:
        environ = {**os.environ, "OUBLIETTE_FAILPOINTS": failpoint}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.runtime.store.writing_process", str(path), *options],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.lines: list[list[str]] = []
        self._finished = False
        self._fresh: queue.SimpleQueue[list[str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._fresh.put(line.decode().split())
        self._fresh.put(None)

    def wait_for(self, *words: str, count: int = 1) -> list[str]:
        """The `count`-th further line that begins with `words`."""
        while True:
            line = self._fresh.get(timeout=WAIT)
            assert line is not None, f"it ended before it said {words}"
            self.lines.append(line)
            if line[: len(words)] == list(words):
                count -= 1
                if count == 0:
                    return line

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def finish(self, *, kill: bool = False) -> int:
        """End it and take in the rest of what it said; returns its status. Again does nothing."""
        if self._finished:
            return self.process.returncode
        self._finished = True
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if kill:
            self.process.kill()
        self.process.stdin.close()
        status = self.process.wait(WAIT)
        self._thread.join(WAIT)
        self.process.stdout.close()
        while (line := self._fresh.get(timeout=WAIT)) is not None:
            self.lines.append(line)
        return status

    def said(self, word: str) -> list[list[str]]:
        return [line[1:] for line in self.lines if line[0] == word]

    @property
    def acknowledged(self) -> set[tuple[str, int, int]]:
        return {(s, int(index), int(seq)) for s, index, seq in self.said("ack")}
