"""Start of an instance that is alone: its id, which is made once, and the number of this start."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from oubliette import ids
from oubliette.actors.project.spawn_answers import IDEMPOTENCY_SECONDS
from oubliette.actors.store.actor import Transact
from oubliette.runtime.files.instance import INSTANCE, PLACE, check_place
from oubliette.runtime.store.operations import BumpMeta, ExpireIdempotency, PutMeta

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oubliette.kit import Ref
    from oubliette.runtime.store.reader import Reader

_EPOCH: Final = "epoch"


async def identify(
    store: Ref, reader: Reader, home: Path, hold: Callable[[str], None]
) -> tuple[str, int]:
    """Return the instance's id, which is made once, and the number of this start, now counted.

    Args:
        store: The actor in front of the database.
        reader: Of the same database.
        home: The home, which is locked.
        hold: Takes the lock of the instance. A copy that is refused is not recorded as its place.

    Raises:
        HomeInUse: the home is a copy of an existing one; as `hold`.
    """
    instance = await reader.meta(INSTANCE)
    ops: list[Any] = [BumpMeta(_EPOCH), ExpireIdempotency(time.time() - IDEMPOTENCY_SECONDS)]
    if instance is None:
        instance = ids.new_id(ids.INSTANCE)
        ops.append(PutMeta(INSTANCE, instance))
    place = await reader.meta(PLACE)
    await asyncio.to_thread(check_place, place, instance, home)
    hold(instance)
    if place != str(home):
        ops.append(PutMeta(PLACE, str(home)))
    answers = await store.ask(Transact(ops=tuple(ops)))
    return instance, int(answers[0])
