"""Every agent, as the real program in a container: turns, interrupts, permissions, its end."""

from __future__ import annotations

import asyncio

import pytest

from oubliette.errors import Conflict, RuntimeFailure
from oubliette.runtime.guest import Exit
from tests.conformance.agents import AGENTS, Agent, essential, new_session, resuming, talking
from tests.conformance.conftest import needs
from tests.conformance.engines import Bench

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]


@essential
async def test_each_turn_ends_with_one_completion_that_has_its_final_text(
    bench: Bench, agent: Agent
) -> None:
    running = await agent.start(bench)
    async with talking(agent, running) as talk:
        for number in (1, 2, 3):
            done = await talk.turn(agent.say(f"turn {number}"))
            assert done.data["status"] == "completed"
            assert (done.data["turn"], done.data["final_text"]) == (number, f"turn {number}")
        kinds = [event.type for event in talk.events]
        assert kinds.count("completion") == 3
        assert kinds.index("ready") < kinds.index("turn_started") < kinds.index("message")


async def test_a_very_long_prompt_arrives_whole(bench: Bench, agent: Agent) -> None:
    running = await agent.start(bench)
    text = "é".join(map(str, range(110_000)))  # which repeats nothing: some agents look for that
    async with talking(agent, running) as talk:
        assert (await talk.turn(agent.say(text))).data["final_text"] == text


async def test_an_interrupted_turn_says_so_and_the_next_one_works(
    bench: Bench, agent: Agent
) -> None:
    running = await agent.start(bench)
    async with talking(agent, running) as talk:
        await talk.executor.send(agent.wait)
        await talk.until("turn_started")
        with pytest.raises(Conflict):
            await talk.executor.send("too early")
        await talk.executor.interrupt()
        assert (await talk.until("completion")).data["status"] == "interrupted"
        assert (await talk.turn(agent.say("still here"))).data["final_text"] == "still here"


async def test_an_interrupt_right_behind_the_prompt_ends_the_turn(
    bench: Bench, agent: Agent
) -> None:
    """Before an agent is ready its prompt is withdrawn; it never hears of it."""
    running = await agent.start(bench)
    async with talking(agent, running) as talk:
        await talk.executor.send(agent.wait)
        await talk.executor.interrupt()
        assert (await talk.until("completion")).data["status"] == "interrupted"
        assert (await talk.turn(agent.say("still here"))).data["final_text"] == "still here"


async def test_a_permission_reaches_the_agent_either_way(bench: Bench, agent: Agent) -> None:
    running = await agent.start(bench)
    session = new_session(running, **agent.asks)
    async with talking(agent, running, session) as talk:
        for allow in (True, False):
            await talk.executor.send(agent.ask)
            request = await talk.until("permission_request")
            assert request.data["text"]
            await talk.executor.answer(request.data["request_id"], allow=allow, reason="because")
            done = await talk.until("completion")
            assert ("allow" in done.data["final_text"]) is allow


async def test_a_crash_is_told_with_its_exit_code(bench: Bench, agent: Agent) -> None:
    running = await agent.start(bench)
    async with talking(agent, running) as talk:
        await talk.executor.send(agent.crash)
        with pytest.raises(AssertionError, match="no completion"):
            await talk.until("completion")
        assert isinstance(talk.executor.exit, Exit)
        assert talk.executor.exit.status not in (0, None)


@essential
@resuming
async def test_a_new_process_of_the_session_goes_on_where_the_old_one_stopped(
    bench: Bench, agent: Agent
) -> None:
    running = await agent.start(bench)
    keep, recall, said = agent.remember
    async with talking(agent, running) as talk:
        assert (await talk.turn(keep)).data["status"] == "completed"
        await talk.executor.send(agent.crash)
        with pytest.raises(AssertionError, match="no completion"):
            await talk.until("completion")
    async with talking(agent, running, talk.resumed()) as again:
        assert said in (await again.turn(recall)).data["final_text"]
    async with talking(agent, running, new_session(running)) as other:
        assert said not in (await other.turn(recall)).data["final_text"]


async def test_two_sessions_of_one_container_do_not_mix(bench: Bench, agent: Agent) -> None:
    running = await agent.start(bench)
    async with talking(agent, running) as one, talking(agent, running) as two:
        first, second = await asyncio.gather(
            one.turn(agent.say("from one")), two.turn(agent.say("from two"))
        )
    assert first.data["final_text"] == "from one"
    assert second.data["final_text"] == "from two"


async def test_secrets_are_in_the_environment_and_in_no_command_line(
    bench: Bench, agent: Agent
) -> None:
    running = await agent.start(bench)
    session = new_session(running, api_key="oub_key_secret")
    command = agent.runtime().command(session, running.info.inside)
    assert command.env["OUBLIETTE_API_KEY"] == "oub_key_secret"
    assert command.env["OUBLIETTE_PAIRING_SECRET"] == session.pairing_secret
    assert not any(
        "oub_key_secret" in word or session.pairing_secret in word for word in command.argv
    )


async def test_one_turn_in_a_process_of_its_own(bench: Bench, agent: Agent) -> None:
    running = await agent.start(bench)
    runtime = agent.runtime()
    async with asyncio.timeout(agent.seconds):
        text = await runtime.execute(
            running.link, running.info.inside, new_session(running), agent.say("short")
        )
        assert text == "short"
        with pytest.raises(RuntimeFailure, match="ended in its turn"):
            await runtime.execute(
                running.link, running.info.inside, new_session(running), agent.crash
            )
        if agent.name == "scripted":
            with pytest.raises(RuntimeFailure, match="the turn failed: no luck"):
                await runtime.execute(
                    running.link,
                    running.info.inside,
                    new_session(running),
                    "say part\nfail no luck",
                )
    stats = await running.link.stats()
    assert stats["procs"] == 0


@pytest.mark.parametrize(
    "agent", [pytest.param(agent, id=agent.name, marks=needs(agent)) for agent in AGENTS]
)
async def test_an_agent_says_whether_it_can_be_used(agent: Agent) -> None:
    runtime = agent.runtime()
    await runtime.initialize({})
    assert (await runtime.is_available()).ok
    await runtime.close()
