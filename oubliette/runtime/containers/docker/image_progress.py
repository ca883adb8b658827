"""Progress of a pull or a build in one line, from an engine's stream."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_STEP: Final = re.compile(r"step (\d+)/(\d+)", re.IGNORECASE)
_BYTES: Final = re.compile(r"([\d.]+) of ([\d.]+) MB$")
_COUNT: Final = re.compile(r"(?:step )?(\d+) of (\d+)")
_DONE: Final = {"Pull complete", "Already exists", "Download complete"}


class ImageProgress:
    """Progress from the parts of a stream: layers of a pull, steps of a build."""

    def __init__(self) -> None:
        self._layers: dict[str, bool] = {}
        self._bytes: dict[str, tuple[int, int]] = {}
        self._status = ""
        self._step = ""

    def feed(self, part: Mapping[str, Any]) -> None:
        status = str(part.get("status") or part.get("stream") or "").strip()
        layer = str(part.get("id") or "")
        detail: Mapping[str, Any] = part.get("progressDetail") or {}
        if status and layer and not status.startswith("Pulling from"):
            self._layers[layer] = self._layers.get(layer, False) or status in _DONE
            if status == "Downloading" and detail.get("total"):
                self._bytes[layer] = (int(detail.get("current") or 0), int(detail["total"]))
            elif layer in self._bytes and self._layers[layer]:
                total = self._bytes[layer][1]
                self._bytes[layer] = (total, total)
        elif status:
            if step := _STEP.match(status):
                self._step = f"step {step[1]} of {step[2]}: "
            self._status = status.splitlines()[-1]

    @property
    def line(self) -> str:
        """The progress, like `2 of 5 layers, 31.4 of 60.2 MB` or `step 3 of 7: RUN make`.

        Empty before the first part.
        """
        if not self._layers or self._step:
            return self._step + self._status[:200]
        done = sum(self._layers.values())
        text = f"{done} of {len(self._layers)} layers"
        if self._bytes:
            current = sum(one for one, _ in self._bytes.values()) / 1e6
            total = sum(all_ for _, all_ in self._bytes.values()) / 1e6
            text += f", {current:.1f} of {total:.1f} MB"
        return text


def share_of(line: str) -> float | None:
    """Return the completed share in a `line` of `ImageProgress`, from 0 to 1, or None."""
    if found := _BYTES.search(line):
        done, total = float(found[1]), float(found[2])
    elif found := _COUNT.match(line):
        done, total = int(found[1]), int(found[2])
        done -= line.startswith("step ")  # the running step is not done
    else:
        return None
    return min(1.0, max(0.0, done / total)) if total else None
