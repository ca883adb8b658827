"""Output half of an agent's process: what was read, delivered to the session, acknowledged.

Plain data: bytes of the agent go in, portions for the session and offsets for the guest come out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.actors.session.messages import AgentOutput, OutputEvent
from oubliette.errors import InvalidParameter
from oubliette.json_values import ENVELOPE, check_values
from oubliette.runtime.agents.silence import events_of_silence, pause_of

if TYPE_CHECKING:
    from oubliette.runtime.agents.base import AgentAdapter, AgentEvent

PORTION: Final = 200  # items delivered at once
MAX_REPLAY: Final = 16 << 20  # bytes of one turn that are kept to be read again


class Acknowledgement(msgspec.Struct, frozen=True):
    """Offsets up to which the guest may discard output."""

    out: int
    err: int


class OutputHalf:
    """Position in the output of one agent's process, and the events not yet delivered from it.

    Args:
        offset: of the output, behind the last event in the log.
        err: offset of standard error up to which it was read.
    """

    def __init__(self, offset: int, err: int) -> None:
        self.offset = offset
        """Offset from which the next attachment reads."""
        self._committed = offset
        self._acknowledged = Acknowledgement(offset, err)
        self._acknowledging = False
        self._replaying = False
        self._undelivered: list[tuple[OutputEvent, ...]] = []
        self._adapter: AgentAdapter | None = None
        self.forked = True
        """False: the agent could not begin with the conversation of a fork."""

    def restart(self) -> None:
        """Reset for another process of the same agent that is about to start."""
        self.offset = self._committed = 0
        self._acknowledged = Acknowledgement(0, 0)

    def begin(self, adapter: AgentAdapter, err: int) -> None:
        """Let `adapter` read the output, from the start if it has a handshake.

        Such an adapter has state that only the output contains. So it reads again all output of an
        earlier server's process that was not acknowledged; the session recognises events that it
        has.
        """
        self._adapter = adapter
        if adapter.handshake:
            self._replaying = True
            self.offset = self._committed = 0
            self._acknowledged = Acknowledgement(0, err)

    @property
    def failed(self) -> str | None:
        """Reason why the handshake will never be over."""
        return None if self._adapter is None else self._adapter.failed

    # ------------------------------------------------------------------ reading

    def read(self, data: bytes, offset: int) -> None:
        """Take output that begins at `offset`; its events are undelivered from now on."""
        assert self._adapter is not None
        self._replaying = False
        self._take(self._adapter.feed(data, offset))
        self.offset = offset + len(data)

    def pause(self) -> float:
        """Return the seconds without output after which `silence` is due; 0: it is not."""
        return pause_of(self._adapter)

    def silence(self) -> None:
        """Take what follows from the agent's silence."""
        assert self._adapter is not None
        self._take(events_of_silence(self._adapter))

    def _take(self, found: list[AgentEvent]) -> None:
        events = [_checked(event) for event in found]
        items = [
            OutputEvent(
                type=event.type,
                data=event.data,
                offset=event.end_offset,
                ordinal=event.ordinal,
                ack=ack_of(event),
            )
            for event in events
        ]
        for event in events:
            if event.type == "ready" and event.data.get("forked") is False:
                self.forked = False
        self._undelivered += portions(items)

    @property
    def must_be_ready(self) -> bool:
        """Whether a gap now is output that was acknowledged, and with it that the agent was ready.

        Its adapter cannot read the handshake then: `resume` with one that is ready already.
        """
        return self._replaying

    def resume(self, adapter: AgentAdapter) -> None:
        """Let `adapter`, which is ready, read what follows a gap."""
        self._adapter = adapter
        self._replaying = False

    def skip(self, following: int) -> None:
        """Note a gap: output continues at the offset `following`."""
        self.offset = following

    # ------------------------------------------------------------------ delivery

    def portion(self, process_id: str) -> AgentOutput | None:
        """Return the next events to deliver; the same ones until `delivered` is called.

        They outlive a broken link: the adapter does not find them again.
        """
        if not self._undelivered:
            return None
        steps = getattr(self._adapter, "steps", 0)  # older adapters of packages have none
        return AgentOutput(process_id=process_id, items=self._undelivered[0], steps=steps)

    def delivered(self) -> None:
        """Note that the session has accepted the last `portion`."""
        del self._undelivered[0]

    # ------------------------------------------------------------------ acknowledgements

    def commit(self, out: int) -> None:
        """Note that the events of the output before `out` are in the log."""
        self._committed = max(self._committed, out)

    def acknowledge(self, err: int) -> Acknowledgement | None:
        """Return what the guest has to be sent now; None: nothing new, or one is under way.

        `err` is the offset up to which standard error was read. Call `acknowledged` at the end of
        each one.
        """
        due = Acknowledgement(self._committed, err)
        if self._acknowledging or due == self._acknowledged:
            return None
        self._acknowledging = True
        self._acknowledged = due
        return due

    def acknowledged(self) -> None:
        """Note the end of an acknowledgement. If it failed, the next attach has the same effect."""
        self._acknowledging = False


def ack_of(event: AgentEvent) -> int:
    """Return the offset up to which output may be discarded; a full spool would block the agent."""
    lag = event.end_offset - event.ack_offset
    return event.ack_offset if lag <= MAX_REPLAY else event.end_offset


def _checked(event: AgentEvent) -> AgentEvent:
    """An event that can be stored and sent: adapters of packages check nothing."""
    try:
        check_values(event.data, "data", envelope=2 * ENVELOPE)
    except InvalidParameter as error:
        return msgspec.structs.replace(event, type="system", data={"raw": str(error)})
    return event


def portions(items: list[OutputEvent]) -> list[tuple[OutputEvent, ...]]:
    """Cut between lines only: the events of one line are committed together."""
    cut: list[list[OutputEvent]] = []
    for item in items:
        full = cut and len(cut[-1]) >= PORTION
        if not cut or (full and cut[-1][-1].offset != item.offset):
            cut.append([])
        cut[-1].append(item)
    return [tuple(portion) for portion in cut]
