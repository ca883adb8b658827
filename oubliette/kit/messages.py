"""Messages between actors: frozen, tagged structs that encode to msgpack."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
)

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


class Signal(msgspec.Struct, frozen=True):
    """Base of the kit's own signals."""


class Stop(Signal, frozen=True):
    """Request to end after the messages that came before."""

    reason: Reason = "shutdown"
    """The reason in the notice to the watchers."""


class TaskFailed(Signal, frozen=True):
    """Report that something beside the mailbox failed, and the actor with it."""

    error: BaseException
    """The exception that it raised."""


T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")

Reason = Literal["normal", "shutdown", "failed", "killed", "noproc", "noconnection"]
"""Reason for the end of an actor.

`normal`: its own decision. `shutdown`: requested by `Ref.stop`, its parent or its System. `failed`:
an error. `killed`: cancelled. `noproc`: it had ended before the watch. `noconnection`: its
machine is gone.
"""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class MessageMeta(msgspec.StructMeta):
    """Metaclass that makes every message class frozen, keyword-only and tagged."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any
    ) -> MessageMeta:
        """Make the class; `config` is msgspec's and may name another tag."""
        config = {"tag": True} | config | {"frozen": True, "kw_only": True}
        return super().__new__(cls, name, bases, namespace, **config)


class Message(msgspec.Struct, metaclass=MessageMeta):
    """Base of every message. Payload dicts in it are read-only by agreement."""


class LocalMessage(Message):
    """A message that never leaves its process, since it names classes or their arguments."""


class Perishable(Message):
    """A message of no use once its receiver has ended: dropped then, not kept as a dead letter."""


class Reply(Generic[T]):
    """Mixin of message classes that declares the type of the answer to an ask.

    `class GetStatus(Message, Reply[Status])` makes `await ref.ask(GetStatus())` a `Status`.
    """

    __slots__ = ()


class Down(Message):
    """The single notice that a watched actor has ended."""

    name: str
    """Name of the actor that ended."""

    reason: Reason
    """Reason for its end."""

    error: str | None = None
    """Type and text of the error, where the reason is `failed`."""

    incarnation: int = 0
    """Incarnation that ended; 0 if there was none to watch (`noproc`)."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that no actor handled."""

    to: str
    """Name of the actor it was sent to."""

    sender: str | None
    """Name of the actor that sent it; None from outside any actor."""

    message: Message
    """The message."""

    why: str
    """Reason why it was not handled."""

    at: float
    """Wall time, seconds since 1970-01-01 UTC."""


def handles(*types: type[msgspec.Struct], at_once: bool = False) -> Callable[[F], F]:
    """Mark a method, `def` or `async def`, as the handler of these types of message.

    With `at_once` such a message is handled while it is sent, if its sender runs on the actor's
    loop and the actor is idle with an empty mailbox; otherwise it waits for its turn as others do.
    That saves a turn of the loop. It is for short `def` handlers, and only where it does not matter
    to the sender that all effects of the handler, including its messages, come before the sender
    continues.
    """

    def mark(function: F) -> F:
        if at_once and inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} may wait, so it cannot be run at once")
        vars(function)["_handles"] = types
        vars(function)["_at_once"] = at_once
        return function

    return mark


@functools.cache
def reply_type(kind: type) -> Any:
    """Return the `T` of `Reply[T]` among the bases of `kind`; `Any` if it declares none."""
    for base in kind.__mro__:
        for declared in getattr(base, "__orig_bases__", ()):
            if get_origin(declared) is Reply:
                return get_args(declared)[0]
    return Any


def round_trip(message: Message) -> Message:
    """Return `message` as it would arrive on another machine.

    Raises:
        TypeError: a part of it does not encode to msgpack.
    """
    if isinstance(message, LocalMessage):
        return message
    return _through_msgpack(message, type(message))


def _through_msgpack(value: Any, kind: Any) -> Any:
    return from_msgpack(to_msgpack(value), kind)


def to_msgpack(value: Any) -> bytes:
    """Return the bytes in which a message or an answer leaves its process.

    Raises:
        TypeError: a part of it does not encode to msgpack.
    """
    return msgspec.msgpack.encode(value, enc_hook=_path_to_text)


def from_msgpack(encoded: bytes, kind: Any) -> Any:
    """Return the value of type `kind` that these bytes describe.

    Raises:
        msgspec.DecodeError: they describe none.
    """
    return msgspec.msgpack.decode(encoded, type=kind, dec_hook=_path_from_text)


def _path_to_text(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def _path_from_text(kind: type, text: Any) -> Any:
    if issubclass(kind, Path):
        return kind(text)
    raise TypeError(f"Decoding objects of type {kind.__name__} is unsupported")


def round_trip_answer(kind: type, answer: Any) -> Any:
    """Return an answer to a `kind` as it would arrive elsewhere; unchanged if undeclared."""
    declared = reply_type(kind)
    if declared is Any or issubclass(kind, LocalMessage):
        return answer
    return _through_msgpack(answer, declared)
