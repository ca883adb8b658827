"""Stdin half of an agent's process: frames that the guest has not accepted, and their numbers.

Plain data: frames of the session and of the agent's protocol go in, the next action comes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from oubliette.actors.session.messages import StdinFrame

if TYPE_CHECKING:
    from oubliette.runtime.agents.base import AgentAdapter


class WriteStdin(msgspec.Struct, frozen=True):
    """Write one frame."""

    number: int
    """Its number at the guest, from 1."""
    data: bytes
    interrupt: bool = False
    """Also send SIGINT, by which this agent is interrupted."""


class AwaitToolList(msgspec.Struct, frozen=True):
    """Wait for the agent's list of our tools, for a limited time; returned once."""


StdinAction: TypeAlias = WriteStdin | AwaitToolList


class StdinHalf:
    """Input for one agent's process.

    The handshake has the first numbers, `adapter.handshake` of them in every case; the frames that
    the session has numbered from 1 follow. So the next owner of the process derives what the agent
    has received from the last number that the guest accepted.
    """

    def __init__(self) -> None:
        self._adapter: AgentAdapter | None = None
        self._opening: list[bytes] = []
        self._unaccepted: dict[int, StdinFrame | bytes] = {}
        """By the session's number: a frame, or the bytes that were made of it."""
        self._tool_list: Literal["awaited", "overdue soon", "had"] = "had"
        self._forked = True

    def begin(self, adapter: AgentAdapter) -> None:
        """Encode by `adapter` from now on, whose handshake has yet to be taken from it."""
        self._adapter = adapter
        self._opening = []

    def expect_tool_list(self) -> None:
        """Hold back the first prompt until the agent has listed our tools."""
        self._tool_list = "awaited"

    def tools_listed(self) -> None:
        self._tool_list = "had"

    def list_overdue(self) -> bool:
        """Wait no longer for the list of our tools; return whether it has not come."""
        late = self._tool_list != "had"
        self._tool_list = "had"
        return late

    def not_forked(self) -> None:
        """Note that the agent could not begin with the conversation of a fork."""
        self._forked = False

    # ------------------------------------------------------------------ frames in

    def submit(self, frame: StdinFrame) -> None:
        self._unaccepted[frame.seq] = frame

    def withdraw(self, seq: int) -> bool:
        """Withdraw a frame unless it was encoded for the agent, or accepted; return whether.

        Its number is used by an empty frame, so that none is waited for.
        """
        if not isinstance(self._unaccepted.get(seq), StdinFrame):
            return False
        self._unaccepted[seq] = b""
        return True

    def take_protocol_frames(self) -> list[bytes]:
        """Take what the protocol sends from the adapter; return what the session has to number.

        The first frames are the handshake, which has numbers already.
        """
        assert self._adapter is not None
        frames = self._adapter.writes()
        missing = self._adapter.handshake - len(self._opening)
        self._opening += frames[:missing]
        return frames[missing:]

    # ------------------------------------------------------------------ frames out

    def accepted(self, number: int) -> int:
        """Drop the frames up to the guest's `number`; return the session's number of the last."""
        assert self._adapter is not None
        seq = number - self._adapter.handshake
        for known in [known for known in self._unaccepted if known <= seq]:
            del self._unaccepted[known]
        return max(0, seq)

    def following(self, written: int) -> StdinAction | None:
        """Return what to do once the guest's number `written` is written; None: wait for a frame.

        A frame that was not accepted before a link broke is returned again, as the same bytes.
        """
        assert self._adapter is not None
        opening = self._adapter.handshake
        if written < opening:
            if written < len(self._opening):
                return WriteStdin(written + 1, self._opening[written])
            return None
        seq = written - opening + 1
        frame = self._unaccepted.get(seq)
        if frame is None or not self._adapter.ready:
            return None
        if self._tool_list == "awaited":
            self._tool_list = "overdue soon"
            return AwaitToolList()
        if self._tool_list != "had":
            return None
        interrupt = False
        if isinstance(frame, StdinFrame):
            if not self._forked:
                frame = msgspec.structs.replace(frame, text=frame.unless_forked + frame.text)
            data = _encoded(self._adapter, frame)
            interrupt = data is None
            # Every number is used, so that none is waited for.
            frame = self._unaccepted[seq] = b"\n" if data is None else data
        return WriteStdin(opening + seq, frame, interrupt)


def _encoded(adapter: AgentAdapter, frame: StdinFrame) -> bytes | None:
    """Return the frame in the agent's protocol; None: an agent that is interrupted by SIGINT."""
    match frame.kind:
        case "prompt":
            return adapter.prompt(frame.turn, frame.text)
        case "permission":
            return adapter.permission(frame.request_id, frame.decision, frame.text)
        case "raw":
            return frame.raw
        case "interrupt":
            return adapter.interrupt(frame.turn)
