"""Frames: the units that nodes exchange, one msgpack array each; a batch begins with a header."""

from __future__ import annotations

from typing import Annotated

import msgspec

from oubliette.kit.messages import Reason

Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Plain = str | int | float | bool | None


class BatchHeader(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """The sender of a batch, and the life of the receiver it is for; zeros if unknown yet."""

    epoch: Number
    """Epoch of the sending node, greater after each start."""

    contact: Number
    """Contact number of the sender: raised each time it gives the receiver up."""

    to_epoch: Number = 0
    to_contact: Number = 0

    turn: Number = 0
    """Place of the batch among those between these two lives, from 1; 0 for a greeting."""


class MessageFrame(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """A message: a `tell` if `answer` is empty, else an ask or a send that waits for an outcome."""

    number: Number
    """Number of the request at its sender; 0 for a `tell`."""

    to: str
    """Name of the actor on the receiving node."""

    kind: str
    """Qualified name of the class of the message."""

    body: bytes
    """The message as msgpack."""

    sender: str | None = None
    """Name of the sending actor on its node."""

    trace: dict[str, str] | None = None
    """Trace context."""

    answer: str = ""
    """`answer` for an ask, `room` for a send."""

    seconds: Seconds | None = None
    """Seconds left until the asker gives up."""


class WatchFrame(msgspec.Struct, frozen=True, array_like=True, tag="w"):
    """A request for the one notice of an actor's end."""

    number: Number
    to: str


class EndFrame(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """A request to end an actor: after its messages within `seconds`, at once if that is 0."""

    number: Number
    to: str
    seconds: Seconds


class GiveUpFrame(msgspec.Struct, frozen=True, array_like=True, tag="g"):
    """The sender of a request no longer waits for its outcome."""

    number: Number


class AnswerFrame(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """The answer to a request."""

    number: Number
    body: bytes
    """The answer as msgpack."""

    kind: str = ""
    """Qualified class of an answer that is a message whose type the question does not declare."""


class FailureFrame(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """The error in which a request ended."""

    number: Number
    kind: str
    """Qualified name of the class of the error."""

    text: str
    """Its text."""

    fields: dict[str, Plain] = {}
    """Its attributes that are plain values."""


class DownFrame(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """The notice that a watched actor has ended."""

    number: Number
    reason: Reason
    error: str | None = None
    incarnation: Number = 0


Outcome = AnswerFrame | FailureFrame | DownFrame
AnyFrame = MessageFrame | WatchFrame | EndFrame | GiveUpFrame | Outcome

_encoder = msgspec.msgpack.Encoder()
_headers = msgspec.msgpack.Decoder(BatchHeader)
_frames: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)
_REQUESTS = frozenset({"m", "w", "e"})


def encode(frame: BatchHeader | AnyFrame) -> bytes:
    """Return the bytes of a frame."""
    return _encoder.encode(frame)


def decode_header(data: bytes) -> BatchHeader:
    """Return the header in these bytes.

    Raises:
        msgspec.DecodeError: they are no header.
    """
    try:
        return _headers.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"no text where one belongs: {error}") from error


def decode(data: bytes) -> AnyFrame:
    """Return the frame in these bytes.

    Raises:
        msgspec.DecodeError: they are no frame.
    """
    return _frames.decode(data)


def number_of_garbled(data: bytes) -> int | None:
    """Return the number of a request that does not decode, None if that cannot be read either."""
    try:
        parts = msgspec.msgpack.decode(data, type=list[object])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if len(parts) < 2 or not isinstance(parts[0], str) or parts[0] not in _REQUESTS:
        return None  # what is no text may not even be hashable
    number = parts[1]
    return number if type(number) is int and number > 0 else None
