"""Turns of a session, and its positions in the agent's streams, on plain data."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from oubliette.actors.session.agent_messages import usage
from oubliette.actors.session.effects import (
    AfterCommit,
    AppendEvent,
    ChangeRecord,
    CountUsage,
    EndTurnWatch,
    InterruptTurn,
    NotifyParent,
    NotifyTree,
    SendPrompt,
    StoreTurn,
    WatchTurn,
    WriteFrame,
)
from oubliette.actors.session.lifecycle import TURN_STEPS
from oubliette.actors.session.messages import AgentBusy, AgentCost, ChildTurnEnded, StdinFrame
from oubliette.actors.session.session_end import EndOfSession, step_of_loss
from oubliette.actors.session.state import NOWHERE, SessionActorState
from oubliette.errors import Conflict
from oubliette.records import Turn, Used
from tests.unit.runtime.store.samples import session as sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.actors.session.effects import Effects
    from oubliette.records import SessionStatus, TurnOutcome

NOW = 1000.0
ID = "gogol_1"
BUSY = NotifyTree(AgentBusy(session_id=ID, works=True))
IDLE = NotifyTree(AgentBusy(session_id=ID, works=False))


def turn(number: int = 1, **changes: Any) -> Turn:
    fields: dict[str, Any] = {"prompt": f"prompt {number}", "state": "queued", "created_at": NOW}
    return Turn(session_id=ID, number=number, **fields | changes)


def ended(of: Turn, outcome: str, result: str | None) -> Turn:
    return msgspec.structs.replace(of, state="done", outcome=outcome, result=result)


def answer(outcome: str, result: str | None) -> AfterCommit:
    """To the call `c1` of the parent `gogol_0`."""
    end = ChildTurnEnded(session_id=ID, call_id="c1", outcome=outcome, result=result)
    return AfterCommit(NotifyParent("gogol_0", end))


def queued(*prompts: str, attached: bool = True) -> SessionActorState:
    """A session with prompts that wait."""
    state = SessionActorState(ID, attached=attached)
    for prompt in prompts:
        state.submit(prompt, None, NOW)
    return state


def running(*later: str) -> SessionActorState:
    """A session with a turn that runs, and prompts that wait behind it."""
    state = queued("go", *later)
    state.begin("idle", held_up=False)
    return state


def events(effects: Effects) -> list[tuple[str, dict[str, Any]]]:
    return [(each.type, each.data) for each in effects if isinstance(each, AppendEvent)]


def stored(effects: Effects) -> list[Turn]:
    return [each.turn for each in effects if isinstance(each, StoreTurn)]


def finish(state: SessionActorState, step: Any, reason: str = "why") -> Effects:
    return state.finish(EndOfSession(step, "failed", reason), "idle", NOW, final=True)


# ------------------------------------------------------------------ a prompt is accepted


def test_a_prompt_is_stored_as_a_turn_of_its_own() -> None:
    state = SessionActorState(ID)
    assert state.submit("prompt 1", None, NOW) == (
        BUSY,
        StoreTurn(turn(1)),
        ChangeRecord({"turn_count": 1, "last_prompt": "prompt 1"}),
    )
    assert stored(state.submit("prompt 2", None, NOW)) == [turn(2)]
    assert [each.number for each in state.queue] == [1, 2]


def test_a_prompt_of_a_parent_keeps_the_call_that_waits_for_it() -> None:
    (of_parent,) = stored(SessionActorState(ID).submit("prompt 1", "gogol_0/c1", NOW))
    assert of_parent.call_id == "gogol_0/c1"


def test_numbers_of_turns_go_on_after_a_restart() -> None:
    state = SessionActorState(ID)
    state.recover((), 7, NOWHERE)
    assert stored(state.submit("more", None, NOW))[0].number == 8


def test_a_session_is_quiet_until_a_prompt_waits_and_after_its_turn() -> None:
    state = SessionActorState(ID, attached=True)
    assert state.quiet
    state.submit("go", None, NOW)
    assert not state.quiet
    state.begin("created", held_up=False)
    assert not state.quiet
    state.complete("completed", "done", None, "running")
    assert state.quiet


# ------------------------------------------------------------------ a turn begins


@pytest.mark.parametrize("status", ["created", "idle", "running"])
def test_a_turn_is_stored_as_running_before_its_prompt_is_sent(status: SessionStatus) -> None:
    state = queued("prompt 1")
    begun = turn(1, state="running", stdin_seq=1)
    assert state.begin(status, held_up=False) == (
        StoreTurn(begun),
        ChangeRecord({"status": "running", "status_reason": None}),
        AppendEvent(
            "status", {"status": "running", "reason": None, "turn": 1, "message": begun.prompt}
        ),
        WatchTurn(1),
        AfterCommit(SendPrompt(begun)),
    )
    assert (state.turn, state.prompt_seq) == (1, 1)


def test_turns_begin_one_after_the_other_in_the_order_of_their_prompts() -> None:
    state = queued("one", "two")
    (first,) = stored(state.begin("idle", held_up=False))
    assert state.begin("running", held_up=False) == ()
    state.complete("completed", "ok", None, "running")
    (second,) = stored(state.begin("idle", held_up=False))
    assert [first.prompt, second.prompt] == ["one", "two"]
    assert [first.stdin_seq, second.stdin_seq] == [1, 2]


def test_without_a_prompt_no_turn_begins() -> None:
    assert SessionActorState(ID, attached=True).begin("idle", held_up=False) == ()


@pytest.mark.parametrize("late", [False, True])
def test_a_session_whose_prompts_were_withdrawn_is_idle_once_its_agent_is_there(
    late: bool,
) -> None:
    """Also after a resume; `late`: the prompt is withdrawn while the agent lists its tools."""
    state = queued("one", "two", attached=late)
    for _ in range(2):
        state.interrupt(held_up=True)
    if not late:
        assert state.begin("created", held_up=False) == ()
        state.agent_attached(0, started=True)
    effects = state.begin("created", held_up=False)
    assert effects == (
        ChangeRecord({"status": "idle", "status_reason": None}),
        AppendEvent("status", {"status": "idle", "reason": None}),
    )
    assert state.begin("idle", held_up=False) == ()


def test_a_turn_waits_for_its_agent_to_be_attached() -> None:
    state = queued("go", attached=False)
    assert state.begin("created", held_up=False) == ()
    state.agent_attached(0, started=True)
    assert stored(state.begin("created", held_up=False)) != []


def test_a_turn_waits_until_the_agent_has_listed_its_tools() -> None:
    state = queued("go")
    assert state.begin("idle", held_up=True) == ()
    assert stored(state.begin("idle", held_up=False)) != []


def test_a_session_that_has_ended_begins_nothing() -> None:
    state = queued()
    finish(state, "ended")
    state.submit("late", None, NOW)
    assert state.begin("completed", held_up=False) == ()


def test_the_prompt_follows_the_frames_that_were_written_before_it() -> None:
    state = queued("go")
    assert [state.next_seq(), state.next_seq()] == [1, 2]
    (begun,) = stored(state.begin("idle", held_up=False))
    assert begun.stdin_seq == state.prompt_seq == 3


# ------------------------------------------------------------------ a turn ends


def test_a_result_ends_the_turn_before_it_is_logged() -> None:
    state = running()
    done = ended(turn(1, prompt="go", stdin_seq=1), "completed", "42")
    assert state.complete("completed", "42", "proc_1:9:0", "running") == (
        EndTurnWatch(),
        IDLE,
        CountUsage(Used(turns=1)),
        StoreTurn(done),
        AppendEvent(
            "completion", {"final_text": "42", "status": "completed", "turn": 1}, "proc_1:9:0"
        ),
        ChangeRecord({"final_response": "42"}),
        ChangeRecord({"status": "idle", "status_reason": None}),
        AppendEvent("status", {"status": "idle", "reason": None}),
    )
    assert state.turn is None
    assert state.prompt_seq == 0


def test_a_tree_learns_that_the_session_is_idle_once_no_prompt_waits() -> None:
    state = running("two")
    assert IDLE not in state.complete("completed", "", None, "running")
    state.begin("idle", held_up=False)
    assert IDLE in state.complete("completed", "", None, "running")


@pytest.mark.parametrize("said", [None, "", "my last words"])
def test_a_failed_turn_results_in_the_last_error_of_its_agent(said: str | None) -> None:
    state = running()
    state.last_error = "no credit"
    effects = state.complete("failed", said, None, "running")
    assert stored(effects)[0].result == "no credit"
    assert events(effects)[0] == (
        "completion",
        {"final_text": "no credit", "status": "failed", "turn": 1},
    )
    assert ChangeRecord({"final_response": said}) in effects


@pytest.mark.parametrize("said", [None, "done"])
@pytest.mark.parametrize("outcome", ["completed", "interrupted"])
def test_an_error_on_the_way_is_not_the_result_of_a_turn_that_did_not_fail(
    outcome: str, said: str | None
) -> None:
    state = running()
    state.last_error = "try again"
    assert stored(state.complete(outcome, said, None, "running"))[0].result == said


def test_an_error_of_one_turn_is_not_the_result_of_the_next() -> None:
    state = running("two")
    state.last_error = "no credit"
    state.complete("failed", None, None, "running")
    state.begin("idle", held_up=False)
    assert stored(state.complete("failed", None, None, "running"))[0].result is None


def test_a_result_without_a_turn_is_logged_and_changes_nothing_else() -> None:
    state = SessionActorState(ID, attached=True)
    assert state.complete("completed", "late", "proc_1:9:0", "idle") == (
        EndTurnWatch(),
        AppendEvent("completion", {"final_text": "late", "status": "completed"}, "proc_1:9:0"),
    )


@pytest.mark.parametrize("outcome", ["completed", "failed"])
def test_the_parent_gets_the_end_of_a_turn_after_it_is_stored(outcome: TurnOutcome) -> None:
    state = SessionActorState(ID, attached=True)
    state.submit("go", "gogol_0/c1", NOW)
    state.begin("created", held_up=False)
    effects = state.complete(outcome, "text", None, "running")
    sent = effects.index(answer(outcome, "text"))
    assert isinstance(effects[sent - 1], StoreTurn)


# ------------------------------------------------------------------ all that can happen


INPUTS: dict[str, Callable[[SessionActorState, Any], Effects]] = {
    "message": lambda state, _: state.submit("more", None, NOW),
    "begin": lambda state, status: state.begin(status, held_up=False),
    "completed": lambda state, status: state.complete("completed", "", None, status),
    "interrupted": lambda state, status: state.complete("interrupted", "", None, status),
    "failed": lambda state, status: state.complete("failed", "", None, status),
    "withdrawn": lambda state, _: state.interrupt(held_up=True),
    "restarted": lambda state, _: state.agent_attached(0, started=True),
    "ended": lambda state, status: state.finish(
        EndOfSession("ended", "completed", "why"), status, NOW, final=True
    ),
}


def test_turns_take_the_steps_of_their_table_whatever_happens_and_each_of_them() -> None:
    taken: set[tuple[str, str]] = set()
    for inputs in itertools.product(INPUTS, repeat=3):
        state = queued("go")
        status: SessionStatus = "created"
        turns = {1: "queued"}
        for name in inputs:
            if state.finished:
                break  # its actor takes nothing more
            effects = INPUTS[name](state, status)
            for each in stored(effects):
                step = "begun" if each.state == "running" else each.outcome
                if each.state == "queued":
                    assert each.number not in turns
                else:
                    before = turns[each.number]
                    assert TURN_STEPS.get(cast("Any", (before, step))) == each.state, inputs
                    taken.add((before, str(step)))
                turns[each.number] = each.state
            for each in effects:
                if isinstance(each, ChangeRecord):
                    status = each.fields.get("status", status)
        if state.finished:
            assert {*turns.values()} == {"done"}, inputs
    assert taken == TURN_STEPS.keys()


def test_a_turn_that_is_over_ends_no_second_time() -> None:
    state = running()
    assert state.running is not None
    state.running = ended(state.running, "completed", "")
    with pytest.raises(Conflict, match="a turn that is done cannot take the step 'failed'"):
        state.complete("failed", None, None, "running")


# ------------------------------------------------------------------ an interrupt


def test_the_agent_is_interrupted_in_the_turn_that_runs() -> None:
    state = running("two")
    assert state.interrupt(held_up=False) == (InterruptTurn(1),)
    assert state.turn == 1


def test_without_a_turn_there_is_nothing_to_interrupt() -> None:
    assert SessionActorState(ID).interrupt(held_up=True) == ()


def test_a_turn_about_to_begin_is_not_dropped() -> None:
    assert queued("go").interrupt(held_up=False) == ()


@pytest.mark.parametrize(("attached", "held_up"), [(False, False), (True, True), (False, True)])
def test_a_turn_that_the_agent_lacks_is_dropped(*, attached: bool, held_up: bool) -> None:
    state = queued("prompt 1", attached=attached)
    assert state.interrupt(held_up=held_up) == (
        IDLE,
        StoreTurn(ended(turn(1), "interrupted", "interrupted before it began")),
        AppendEvent("completion", {"turn": 1, "final_text": "", "status": "interrupted"}),
    )
    assert state.quiet


def test_an_interrupt_drops_one_turn_of_several() -> None:
    state = queued("one", "two", attached=False)
    assert IDLE not in state.interrupt(held_up=False)
    assert [each.prompt for each in state.queue] == ["two"]


def test_the_parent_learns_that_its_turn_was_dropped() -> None:
    state = SessionActorState(ID)
    state.submit("go", "gogol_0/c1", NOW)
    why = "interrupted before it began"
    assert answer("interrupted", why) in state.interrupt(held_up=False)


# ------------------------------------------------------------------ the session ends


@pytest.mark.parametrize(
    ("step", "outcome"),
    [("ended", "interrupted"), ("agent_lost", "failed"), ("time_ran_out", "failed")],
)
def test_the_end_of_a_session_ends_its_turn(step: Any, outcome: str) -> None:
    state = running()
    done = ended(turn(1, prompt="go", stdin_seq=1), outcome, "why")
    counted = CountUsage(Used(turns=1))
    assert finish(state, step)[:4] == (EndTurnWatch(), IDLE, counted, StoreTurn(done))
    assert state.finished
    assert state.quiet


def test_turns_that_wait_are_not_run_and_the_log_says_so() -> None:
    state = running("two", "three")
    effects = finish(state, "agent_lost", "gone")
    why = "not run: the session ended (gone)"
    assert [(each.number, each.outcome, each.result) for each in stored(effects)] == [
        (1, "failed", "gone"),
        (2, "failed", why),
        (3, "failed", why),
    ]
    assert events(effects) == [
        ("completion", {"final_text": "gone", "status": "failed", "turn": 1}),
        *(("error", {"message": why, "turn": number, "kind": "not_run"}) for number in (2, 3)),
        ("status", {"status": "failed", "reason": "gone"}),
    ]
    assert IDLE not in effects
    assert effects.count(CountUsage(Used(turns=1))) == 1, "of those that began"


def test_the_parent_learns_that_its_turn_is_not_run() -> None:
    state = SessionActorState(ID)
    state.submit("go", "gogol_0/c1", NOW)
    why = "not run: the session ended (gone)"
    assert answer("failed", why) in finish(state, "agent_lost", "gone")


@pytest.mark.parametrize(
    ("step", "final", "status", "ended_by"),
    [
        ("ended", True, "completed", "why"),
        ("ended", False, "completed", None),
        ("idled_out", True, "timed_out", None),
        ("agent_lost", True, "failed", None),
    ],
)
def test_the_record_of_a_session_that_ended_has_no_process(
    step: Any, *, final: bool, status: str, ended_by: str | None
) -> None:
    end = EndOfSession(step, "shown", "why")
    *_, changed, event = SessionActorState(ID).finish(end, "idle", NOW, final=final)
    assert changed == ChangeRecord(
        {
            "status": status,
            "status_reason": "why",
            "ended_at": NOW,
            "ended_by": ended_by,
            "ending": None,
            "process_id": None,
        }
    )
    assert event == AppendEvent("status", {"status": "shown", "reason": "why"})


@pytest.mark.parametrize(
    ("status", "start_failed", "step"),
    [
        ("created", True, "start_failed"),
        ("running", True, "start_failed"),
        ("idle", True, "agent_lost"),
        ("created", False, "agent_lost"),
    ],
)
def test_an_agent_that_was_up_before_did_not_fail_to_start(
    status: SessionStatus, *, start_failed: bool, step: str
) -> None:
    assert step_of_loss(status, start_failed=start_failed) == step


# ------------------------------------------------------------------ what it used


def test_what_the_agent_used_is_added_and_the_tree_gets_the_sum_of_the_costs() -> None:
    before = sample(cost_usd=1.5, input_tokens=10, output_tokens=1)
    used = {"cost_usd": 0.25, "input_tokens": 3, "output_tokens": 2}
    assert usage(before, used) == (
        ChangeRecord({"cost_usd": 1.75, "input_tokens": 13, "output_tokens": 3}),
        CountUsage(Used(input_tokens=3, output_tokens=2, reported_usd=0.25)),
        NotifyTree(AgentCost(session_id=before.id, cost_usd=1.75)),
    )


def test_a_cost_from_configured_prices_is_counted_apart_from_what_the_agent_reports() -> None:
    _, counted, _ = usage(sample(), {"cost_usd": 0.25, "measured": True})
    assert counted == CountUsage(Used(measured_usd=0.25))


@pytest.mark.parametrize("used", [{}, {"cost_usd": None, "tokens": None, "output_tokens": None}])
def test_an_agent_that_does_not_say_what_it_used_adds_nothing(used: dict[str, Any]) -> None:
    changed, _ = usage(sample(input_tokens=10), used)
    assert changed == ChangeRecord({"cost_usd": 0.0, "input_tokens": 10, "output_tokens": 0})


def test_tokens_that_are_not_told_apart_count_as_input() -> None:
    changed, counted, _ = usage(sample(), {"tokens": 7})
    assert changed == ChangeRecord({"cost_usd": 0.0, "input_tokens": 7, "output_tokens": 0})
    assert counted == CountUsage(Used(input_tokens=7))


# ------------------------------------------------------------------ recovery


def recovered(seq: int) -> SessionActorState:
    """A new actor of a session whose running turn has its prompt in frame `seq`."""
    state = SessionActorState(ID)
    one = turn(4, state="running", stdin_seq=seq)
    state.recover((one, turn(5), turn(6)), 6, (120, 1))
    state.agent_detached()
    return state


def test_an_actor_takes_over_the_turn_that_runs_and_those_that_wait() -> None:
    state = recovered(3)
    assert (state.turn, state.prompt_seq, state.turns_done) == (4, 3, 3)
    assert [each.number for each in state.queue] == [5, 6]
    assert not state.attached


def test_a_prompt_that_the_agent_has_is_not_written_again() -> None:
    assert recovered(3).agent_attached(3, started=False) == ()
    assert recovered(3).agent_attached(5, started=False) == ()


def test_a_prompt_that_the_agent_lacks_is_written_under_its_number() -> None:
    (sent,) = recovered(3).agent_attached(2, started=False)
    assert sent == SendPrompt(turn(4, state="running", stdin_seq=3))


def test_lost_frames_before_the_prompt_are_written_empty() -> None:
    *lost, sent = recovered(4).agent_attached(1, started=False)
    assert lost == [WriteFrame(StdinFrame(seq=seq, kind="raw")) for seq in (2, 3)]
    assert sent == SendPrompt(turn(4, state="running", stdin_seq=4))


def test_a_new_process_knows_nothing_of_the_turn_which_fails() -> None:
    state = recovered(3)
    done = ended(turn(4, stdin_seq=3), "failed", "the agent was started anew")
    reason = "the agent was started anew"
    assert state.agent_attached(0, started=True) == (
        EndTurnWatch(),
        CountUsage(Used(turns=1)),
        StoreTurn(done),
        AppendEvent("completion", {"final_text": reason, "status": "failed", "turn": 4}),
    )
    (begun,) = stored(state.begin("running", held_up=False))
    assert begun.number == 5


def test_frames_go_on_behind_those_that_the_agent_has() -> None:
    state = recovered(3)
    state.agent_attached(5, started=False)
    assert state.next_seq() == 6


def test_frames_that_the_agent_did_not_accept_are_lost_except_the_prompt() -> None:
    state = running()
    state.next_seq()
    state.agent_detached()
    assert state.next_seq() == state.prompt_seq + 1


def test_an_attached_agent_that_is_attached_again_gets_its_prompt_once() -> None:
    state = running()
    assert state.agent_attached(0, started=False) != ()
    assert state.agent_attached(1, started=False) == ()


# ------------------------------------------------------------------ the agent's output


def test_output_is_taken_in_once_and_in_order() -> None:
    state = SessionActorState(ID)
    assert state.take_in(0, 0)
    assert state.take_in(10, 0)
    assert state.take_in(10, 1)
    assert not state.take_in(10, 1)
    assert not state.take_in(10, 0)
    assert not state.take_in(5, 7)
    assert state.seen == (10, 1)


def test_output_before_the_last_stored_item_is_skipped_after_a_restart() -> None:
    state = recovered(3)
    assert not state.take_in(120, 1)
    assert state.take_in(120, 2)


def test_another_process_has_streams_of_its_own() -> None:
    state = recovered(3)
    state.agent_attached(9, started=False)
    state.process_replaced()
    assert state.take_in(0, 0)
    assert state.next_seq() == 1


@pytest.mark.parametrize(
    ("turns", "count", "done"),
    [((), 0, 0), ((), 3, 3), ((4,), 4, 3), ((4, 5), 5, 3)],
)
def test_turns_are_done_up_to_the_first_that_runs_or_waits(
    turns: tuple[int, ...], count: int, done: int
) -> None:
    state = SessionActorState(ID)
    state.recover([turn(number) for number in turns], count, NOWHERE)
    assert state.turns_done == done
