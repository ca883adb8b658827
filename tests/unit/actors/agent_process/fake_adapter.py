"""An agent's protocol in a line: `NAME TEXT` is an event, with a handshake of any length."""

from __future__ import annotations

from typing import Any

from oubliette.runtime.agents.base import AgentEvent


class FakeAdapter:
    """Reads whole lines; `ready!` ends the handshake, `no!` makes it fail, `a,b` is two events."""

    def __init__(self, handshake: int = 0, *, by_signal: bool = False) -> None:
        self.handshake = handshake
        self.ready = handshake == 0
        self.failed: str | None = None
        self.steps = 0
        self.outbox = [b"open-%d" % number for number in range(1, handshake + 1)]
        self._by_signal = by_signal
        self._rest = b""

    def feed(self, data: bytes, offset: int) -> list[AgentEvent]:
        start = offset - len(self._rest)
        *lines, self._rest = (self._rest + data).split(b"\n")
        found: list[AgentEvent] = []
        for line in lines:
            end = start + len(line) + 1
            words = line.decode().split(",")
            if words == ["ready!"]:
                self.ready = True
            elif words == ["no!"]:
                self.failed = "it does not like us"
            elif words == ["ask!"]:
                self.outbox.append(b"answer")
            else:
                self.steps += 1
                found += [
                    AgentEvent(
                        type="message",
                        data={"text": word},
                        end_offset=end,
                        ordinal=ordinal,
                        ack_offset=end if ordinal == len(words) - 1 else start,
                    )
                    for ordinal, word in enumerate(words)
                ]
            start = end
        return found

    def writes(self) -> list[bytes]:
        taken, self.outbox = self.outbox, []
        return taken

    def prompt(self, turn: int, text: str) -> bytes:
        return f"prompt {turn} {text}".encode()

    def interrupt(self, turn: int) -> bytes | None:
        return None if self._by_signal else f"interrupt {turn}".encode()

    def permission(self, request_id: str, decision: str, reason: str = "") -> bytes:
        return f"{decision} {request_id} {reason}".encode()

    def state(self) -> dict[str, Any]:
        return {}
