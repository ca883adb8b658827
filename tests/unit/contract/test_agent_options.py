"""Options of a session: what may be asked for is passed on and kept under the same name."""

from __future__ import annotations

import msgspec
import pytest

from oubliette.actors.messages import CreateProject, SpawnSession
from oubliette.config.agent_config import AgentConfig
from oubliette.contract.agent_options import AgentOptions
from oubliette.contract.project import ProjectCreate
from oubliette.records import AgentChoice, Project, Session, made_of, same_fields
from oubliette.runtime.agents.base import AgentSession
from tests.unit.runtime.store import samples


@pytest.mark.parametrize(
    "kind",
    [AgentOptions, ProjectCreate, AgentConfig, CreateProject, SpawnSession, AgentSession]
    + [Project, Session],
)
def test_a_choice_is_lost_at_no_step_from_the_call_to_the_agent(
    kind: type[msgspec.Struct],
) -> None:
    assert set(AgentChoice.__struct_fields__) <= set(kind.__struct_fields__)


def test_one_struct_is_made_of_another_by_the_names_that_both_have() -> None:
    session = samples.session(model="m", autonomy="low")
    choice = AgentChoice(agent="scripted", model="m", autonomy="low")
    assert made_of(session, AgentChoice) == choice
    assert same_fields(choice, Session) == msgspec.structs.asdict(choice)
    assert made_of(session, AgentChoice, model="n").model == "n"
