"""Classes that may cross between nodes, by their qualified names: messages and errors.

Only classes that this process has defined already are found: a peer can name them, not import them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from oubliette.errors import OublietteError
from oubliette.kit.errors import ActorError
from oubliette.kit.messages import LocalMessage, Message, from_msgpack, reply_type, to_msgpack
from oubliette.kit.remote.frames import AnswerFrame, FailureFrame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.kit.remote.frames import Plain

T = TypeVar("T")

_messages: dict[str, type[Message]] = {}
_errors: dict[str, type[OublietteError]] = {}


class NotSendable(ActorError, TypeError):
    """The message or answer cannot leave its process."""

    code: ClassVar[str] = "not_sendable"


class RemoteFailure(ActorError):
    """A handler on another node raised an error of a type that does not cross."""

    code: ClassVar[str] = "remote_failure"

    def __init__(self, message: str, *, kind: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        """Name of the type of the original error."""


def kind_name(cls: type) -> str:
    """Return the name by which a class crosses."""
    return f"{cls.__module__}.{cls.__qualname__}"


def message_kind(name: str) -> type[Message]:
    """Return the message class of that name.

    Raises:
        NotSendable: there is none in this process, or it may not cross.
    """
    found = _messages.get(name)
    if found is None:
        for cls in _subclasses(Message):
            if kind_name(cls) == name:
                found = cls  # of two with one name, the later one
        if found is None:
            raise NotSendable(f"no message class {name} is known here")
        if issubclass(found, LocalMessage):
            raise NotSendable(f"{name} is a LocalMessage, which never leaves its process")
        _messages[name] = found
    return found


def pack_message(message: Any) -> tuple[str, bytes]:
    """Return the kind and the bytes of a message.

    Raises:
        NotSendable: it is a `LocalMessage` or no message, or a part of it does not encode.
    """
    cls: type = message.__class__
    if not isinstance(message, Message) or isinstance(message, LocalMessage):
        raise NotSendable(
            f"{cls.__name__} never leaves its process",
            hint="send a Message that is no LocalMessage to an actor of another node",
        )
    try:
        return kind_name(cls), to_msgpack(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotSendable(f"{cls.__name__} cannot be sent: {error}") from error


def unpack_message(kind: str, body: bytes) -> Message:
    """Return the message in these bytes.

    Raises:
        NotSendable: the class is unknown, or the bytes do not describe one of its objects.
    """
    cls = message_kind(kind)
    try:
        return cast("Message", from_msgpack(body, cls))
    except Exception as error:  # a peer may send anything, also what a hook of the class refuses
        raise NotSendable(f"{kind} does not decode: {error}") from error


def pack_answer(number: int, answer: Any) -> AnswerFrame | FailureFrame:
    """Return the frame of an answer; of an error if it cannot be sent."""
    kind = kind_name(cast("type", type(answer))) if isinstance(answer, Message) else ""
    if isinstance(answer, LocalMessage):
        return pack_error(number, NotSendable(f"{kind} as an answer never leaves its process"))
    try:
        return AnswerFrame(number, to_msgpack(answer), kind)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        name = type(answer).__name__
        return pack_error(number, NotSendable(f"the answer, {name}, cannot be sent: {error}"))


def unpack_answer(question: type, frame: AnswerFrame) -> Any:
    """Return the answer to a question of that type.

    Raises:
        NotSendable: it is not of the declared type.
    """
    declared = reply_type(question)
    if declared is Any and frame.kind:
        declared = message_kind(frame.kind)
    try:
        return from_msgpack(frame.body, declared)
    except Exception as error:
        raise NotSendable(f"the answer to {question.__name__} does not decode: {error}") from error


def pack_error(number: int, error: BaseException) -> FailureFrame:
    """Return the frame of an error."""
    cls = type(error)
    if not isinstance(error, OublietteError):
        return FailureFrame(number, cls.__qualname__, clean(str(error)))
    fields: dict[str, Plain] = {}
    for name, value in vars(error).items():
        if isinstance(value, str):
            fields[name] = clean(value)
        elif value is None or isinstance(value, float) or _is_small(value):
            fields[name] = value
    return FailureFrame(number, kind_name(cls), clean(error.message), fields)


def unpack_error(frame: FailureFrame) -> OublietteError:
    """Return the error of a frame: of its class if that is one of ours, else a `RemoteFailure`."""
    cls = _errors.get(frame.kind)
    if cls is None:
        for known in _subclasses(OublietteError):
            if kind_name(known) == frame.kind:
                cls = known
        if cls is None:
            return RemoteFailure(f"{frame.kind}: {frame.text}", kind=frame.kind)
        _errors[frame.kind] = cls
    error = cls.__new__(cls, frame.text)
    error.args = (frame.text,)
    vars(error).update({"message": frame.text, "hint": None})
    vars(error).update({n: v for n, v in frame.fields.items() if not _reserved(n)})
    return error


def clean(text: str) -> str:
    """Return `text` with what cannot be encoded replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _is_small(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 1 << 62


def _reserved(name: str) -> bool:
    return name.startswith("_") or name in {"args", "message"}


def _subclasses(cls: type[T]) -> Iterator[type[T]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _subclasses(child)
