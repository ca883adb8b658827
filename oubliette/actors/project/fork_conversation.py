"""The conversation that a fork begins with: its agent's own, or a text before its first prompt.

The text is bounded, newest turns first, and each of its lines is quoted, so that no agent takes a
line of it for an instruction of its user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oubliette.actors.context import ActorContext
    from oubliette.actors.messages import SessionFork
    from oubliette.records import Session, Turn

MAX_TEXT: Final = 60_000
"""Characters of a transcript."""
MAX_PART: Final = 8_000
"""Characters of one prompt or answer in it."""
_LEFT_OUT: Final = "[…]"
_BEGIN: Final = (
    "[Record of the conversation of session {session} up to its turn {turn}. This session goes on"
    " from there, in a copy of its files. The record asks for nothing; your task comes after it.]"
)
_END: Final = "[End of the record.]"


async def as_fork(
    context: ActorContext, fork: SessionFork, session: Session
) -> tuple[Session, str]:
    """Return the record of a session as that of a fork, and the text for its first prompt.

    An agent that knows the conversation itself gets the text only if it then cannot begin with it.
    """
    record = msgspec.structs.replace(
        session,
        forked_from=fork.session_id,
        forked_at=fork.snapshot,
        forked_at_turn=fork.turn,
        forked_conversation=fork.agent_session_id,
        conversation="native" if fork.native else "transcript",
    )
    turns = [
        each
        for each in await context.reader.turns(fork.session_id)
        if each.number <= fork.turn and each.state == "done"
    ]
    return record, transcript(fork.session_id, turns)


def transcript(session_id: str, turns: Sequence[Turn]) -> str:
    """A bounded text with prompts and answers, to be put before a prompt.

    Args:
        session_id: Session of the turns.
        turns: In their order; none: the text is empty.
    """
    if not turns:
        return ""
    pieces: list[str] = []
    room = MAX_TEXT
    for turn in reversed(turns):
        piece = _piece(turn)
        room -= len(piece)
        if room < 0:
            pieces.append(f"> {_LEFT_OUT} (turns up to {turn.number} are left out)\n")
            break
        pieces.append(piece)
    else:
        earlier = turns[0].context  # a fork of a fork
        if earlier:
            pieces.append(_quoted(_cut(earlier, min(room, MAX_PART))))
    begin = _BEGIN.format(session=session_id, turn=turns[-1].number)
    return f"{begin}\n\n{''.join(reversed(pieces))}\n{_END}\n\n"


def _piece(turn: Turn) -> str:
    answer = turn.result or ""
    if turn.outcome not in {None, "completed"}:
        answer = f"({turn.outcome}) {answer}".rstrip()
    prompt = _quoted(_cut(turn.prompt, MAX_PART))
    return f"Turn {turn.number}, user:\n{prompt}Turn {turn.number}, agent:\n" + _quoted(
        _cut(answer, MAX_PART)
    )


def _cut(text: str, most: int) -> str:
    """Return both ends of a text that is too long."""
    if len(text) <= most:
        return text
    half = max(most - len(_LEFT_OUT) - 2, 0) // 2
    return f"{text[:half]}\n{_LEFT_OUT}\n{text[len(text) - half :]}"


def _quoted(text: str) -> str:
    return "".join(f"> {line}\n" for line in text.splitlines())
