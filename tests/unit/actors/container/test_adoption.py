"""Which container of an earlier server is kept, decided on records and the engine's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from oubliette.actors.container.adoption import (
    ExaminedContainer,
    choose,
    examine,
    holders_of,
    records_of,
)
from oubliette.actors.container.messages import ContainerKey
from oubliette.errors import ContainerLost, NotFound, RuntimeFailure
from oubliette.records import Container, Session
from oubliette.runtime.containers.base import ContainerInfo

RUNNING = Container(
    id="cont_a", project_id="proj_x", container_type="base", runtime="process", state="running",
    created_at=0.0, spec_hash="now", workspace_id=None, host_key=b"k" * 32, folder="run",
)  # fmt: skip
SESSION = Session(
    id="gogol_x", project_id="proj_x", workspace_id="ws_x", principal="p", agent="scripted",
    status="running", created_at=0.0, updated_at=0.0, exploration_id="gogol_x",
)  # fmt: skip


def record(container_id: str = "cont_a", **changes: Any) -> Container:
    return msgspec.structs.replace(RUNNING, id=container_id, **changes)


def info(container_id: str = "cont_a", state: Any = "running") -> ContainerInfo:
    return ContainerInfo(id=container_id, state=state, labels={}, runtime_dir=Path("run"))


def examined(container_id: str = "cont_a", **changes: Any) -> ExaminedContainer:
    return ExaminedContainer(record(container_id, **changes), info(container_id))


def is_current(of: Container) -> bool:
    return of.spec_hash == "now"


def test_one_that_runs_with_the_present_settings_is_kept_with_the_leases_of_its_sessions() -> None:
    adoption = choose([examined()], {"cont_a": {"gogol_x"}}, is_current)
    assert adoption.kept is not None
    assert (adoption.kept.record, adoption.kept.info) == (record(), info())
    assert (adoption.kept.outdated, adoption.kept.leases) == (False, {"gogol_x"})
    assert (adoption.removed, adoption.forgotten) == ([], [])


def test_one_of_other_settings_is_kept_only_for_sessions_that_are_in_it() -> None:
    old = examined(spec_hash="before")
    held = choose([old], {"cont_a": {"gogol_x"}}, is_current)
    assert held.kept is not None
    assert held.kept.outdated
    free = choose([old], {"cont_other": {"gogol_x"}}, is_current)
    assert (free.kept, free.removed) == (None, [old.record])


@pytest.mark.parametrize(
    "cut",
    [
        ExaminedContainer(record(state="creating"), info()),
        ExaminedContainer(record(), info(state="exited")),
    ],
)
def test_one_that_does_not_run_as_a_whole_is_removed_even_if_it_is_held(
    cut: ExaminedContainer,
) -> None:
    adoption = choose([cut], {"cont_a": {"gogol_x"}}, is_current)
    assert (adoption.kept, adoption.removed) == (None, [cut.record])


def test_one_that_the_engine_does_not_have_is_forgotten() -> None:
    adoption = choose([ExaminedContainer(record(), None)], {}, is_current)
    assert (adoption.kept, adoption.removed, adoption.forgotten) == (None, [], [record()])


def test_the_first_of_two_usable_ones_is_kept_and_the_other_removed() -> None:
    adoption = choose([examined("cont_a"), examined("cont_b")], {}, is_current)
    assert adoption.kept is not None
    assert adoption.kept.record.id == "cont_a"
    assert adoption.removed == [record("cont_b")]


def test_sessions_hold_the_container_that_their_record_names() -> None:
    def in_container(session_id: str, container_id: str | None) -> Session:
        return msgspec.structs.replace(SESSION, id=session_id, container_id=container_id)

    sessions = [in_container("a", "one"), in_container("b", "one"), in_container("c", None)]
    assert holders_of(sessions) == {"one": {"a", "b"}}


def test_containers_of_another_place_are_not_looked_at() -> None:
    others = [
        record(project_id="proj_y"),
        record(workspace_id="ws_y"),
        record(container_type="dev"),
    ]
    assert records_of([*others, record()], "proj_x", ContainerKey("base")) == [record()]


class Engine:
    """An engine with one answer for each container."""

    def __init__(self, answers: dict[str, ContainerInfo | Exception]) -> None:
        self._answers = answers

    async def inspect(self, container_id: str) -> ContainerInfo:
        answer = self._answers[container_id]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.anyio
async def test_the_engine_is_asked_for_each_and_may_not_have_it() -> None:
    engine: Any = Engine({"a": info("a"), "b": NotFound("b"), "c": ContainerLost("c")})
    found = await examine(engine, [record("a"), record("b"), record("c")])
    assert [each.info for each in found] == [info("a"), None, None]


@pytest.mark.anyio
async def test_an_engine_that_fails_tells_nothing_of_any() -> None:
    engine: Any = Engine({"a": info("a"), "b": RuntimeFailure("no engine")})
    with pytest.raises(RuntimeFailure, match="no engine"):
        await examine(engine, [record("a"), record("b")])
