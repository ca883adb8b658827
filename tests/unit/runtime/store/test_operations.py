"""What each operation stores, answers and refuses."""

from __future__ import annotations

import msgspec
import pytest

from oubliette.errors import AlreadyExists, Conflict, InvalidParameter, NotFound
from oubliette.records import CallerTool, Limits, Principal, Used
from oubliette.runtime.store import operations, queries
from tests.unit.runtime.store import samples
from tests.unit.runtime.store.samples import event


def only_container(connection):
    (container,) = queries.containers(connection)
    return container


@pytest.mark.parametrize(
    ("put", "record", "get", "key"),
    [
        (
            operations.PutPrincipal,
            Principal(id="prin_1", name="N", created_at=1.5),
            queries.principal,
            ("prin_1",),
        ),
        (
            operations.PutToken,
            samples.token(expires_at=2.25, session_id="s1"),
            queries.token,
            ("tok_1",),
        ),
        (
            operations.PutProject,
            samples.project(limits=Limits(max_depth=2), mcp_servers={"a": {"b": [1]}}),
            queries.project,
            ("proj_1",),
        ),
        (operations.PutWorkspace, samples.workspace(external_id="x"), queries.workspace, ("w1",)),
        (operations.PutContainer, samples.container(), only_container, ()),
        (operations.PutSession, samples.session(limits=Limits()), queries.session, ("s1",)),
        (operations.PutTurn, samples.turn(call_id="s0/7"), queries.turn, ("s1", 1)),
        (operations.PutCallerRequest, samples.request(call_id="7"), queries.request, ("req1",)),
    ],
)
def test_a_record_is_read_as_it_was_put(store, put, record, get, key):
    assert store.write(put(record)) == (None,)
    assert store.read(get, *key) == record
    store.write(put(record))
    assert store.read(get, *key) == record


def test_what_is_not_there_is_none(store):
    for query in (
        queries.project,
        queries.workspace,
        queries.session,
        queries.request,
        queries.token,
        queries.principal,
        queries.meta,
        queries.turn_of_call,
        queries.project_named,
    ):
        assert store.read(query, "nothing") is None


# ---------------------------------------------------------------------- projects


def test_two_live_projects_never_have_the_same_name(store):
    store.write(operations.PutProject(samples.project(1, name="A")))
    with pytest.raises(AlreadyExists, match="^project already exists$"):
        store.write(operations.PutProject(samples.project(2, name="A")))
    assert store.read(queries.project_named, "A").id == "proj_1"
    assert store.read(queries.project, "proj_2") is None


def test_the_name_of_a_deleted_project_is_free_again(store):
    store.write(operations.PutProject(samples.project(1, name="A", deleted_at=5.0)))
    store.write(operations.PutProject(samples.project(2, name="A")))
    assert store.read(queries.project_named, "A").id == "proj_2"
    with pytest.raises(AlreadyExists):
        store.write(operations.PutProject(samples.project(1, name="A")))


def test_projects_are_found_by_part_of_their_name_whatever_the_case(store):
    for number, name in enumerate(["Straße", "100% safe_", "alpha", "ALPHABET"], 1):
        store.write(operations.PutProject(samples.project(number, name=name)))

    def found(part):
        return [project.name for project in store.read(queries.projects, part).records]

    assert found("strasse") == ["Straße"]
    assert found("alpha") == ["alpha", "ALPHABET"]
    assert found("%") == ["100% safe_"]
    assert found("_") == ["100% safe_"]
    assert found("' OR 1") == []
    assert len(found(None)) == len(found("")) == 4


def test_a_listing_can_be_walked_page_by_page(store):
    store.write(*(operations.PutSession(samples.session(number)) for number in range(10)))
    for newest_first in (False, True):
        seen, cursor = [], None
        while True:
            page = store.read(
                queries.sessions, "proj_1", limit=3, cursor=cursor, newest_first=newest_first
            )
            seen += [session.id for session in page.records]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == sorted((f"s{n}" for n in range(10)), reverse=newest_first)
    assert store.read(queries.sessions, "proj_1", limit=10).next_cursor is None


# ---------------------------------------------------------------------- sessions


def test_sessions_are_listed_by_what_is_asked_for(store):
    store.write(
        operations.PutSession(samples.session(1)),
        operations.PutSession(samples.session(2, status="completed", exploration_id="expl_2")),
        operations.PutSession(samples.session(3, parent_session_id="s1", depth=1, status="idle")),
        operations.PutSession(samples.session(4, project_id="proj_2", principal="prin_2")),
    )

    def ids(**filters):
        return [one.id for one in store.read(queries.sessions, **filters).records]

    assert ids() == ["s1", "s2", "s3", "s4"]
    assert ids(project_id="proj_1", status="completed") == ["s2"]
    assert ids(exploration_id="expl_1", project_id="proj_1") == ["s1", "s3"]
    assert ids(principal="prin_2") == ["s4"]
    projects = samples.project(1), samples.project(2, deleted_at=1.0)
    store.write(*map(operations.PutProject, projects))
    page = store.read(queries.listed_sessions, None, ("completed", "running"), newest_first=True)
    assert [one.id for one in page.records] == ["s2", "s1"]
    assert store.read(queries.listed_sessions, "proj_2").records[0].id == "s4"
    assert [one.id for one in store.read(queries.live_sessions)] == ["s1", "s3", "s4"]
    assert [one.id for one in store.read(queries.live_sessions, "proj_1")] == ["s1", "s3"]
    assert [one.id for one in store.read(queries.children, "s1")] == ["s3"]
    assert store.read(queries.count_live_sessions, "proj_1") == 1
    assert store.read(queries.count_live_sessions, "proj_1", top_level=False) == 2


def test_the_latest_session_is_one_that_nobody_ended_and_no_child(store):
    store.write(
        operations.PutSession(samples.session(1)),
        operations.PutSession(samples.session(2, status="failed")),
        operations.PutSession(samples.session(3, ended_by="session_end", status="completed")),
        operations.PutSession(samples.session(4, parent_session_id="s1")),
        operations.PutSession(samples.session(5, principal="prin_2")),
        operations.PutSession(samples.session(6, workspace_id="w2")),
    )
    assert store.read(queries.latest_session, "w1", "prin_1").id == "s2"
    assert store.read(queries.latest_session, "w1", "prin_1", "s1").id == "s4"
    assert store.read(queries.latest_session, "w3", "prin_1") is None


def test_an_ended_session_is_purged_with_all_that_hangs_on_it(store):
    store.write(
        operations.PutSession(samples.session(1, status="completed", updated_at=5.0)),
        operations.PutSession(samples.session(2)),
        operations.AppendEvents((event(0), event(0, "s2"))),
        operations.PutTurn(samples.turn()),
        operations.PutCallerRequest(samples.request()),
        operations.PutToken(samples.token(1, session_id="s1")),
        operations.PutToken(samples.token(2)),
    )
    assert store.read(queries.ended_sessions, 5.0) == []
    assert store.read(queries.ended_sessions, 6.0) == ["s1"]
    assert store.read(queries.ended_sessions, 6.0, "proj_2") == []
    assert store.write(operations.PurgeSession("s1"), operations.PurgeSession("s1")) == (
        True,
        False,
    )
    assert store.read(queries.session, "s1") is None
    assert store.read(queries.log, "s1").events == []
    assert store.read(queries.turns, "s1") == []
    assert store.read(queries.request, "req1") is None
    assert [token.id for token in store.read(queries.tokens)] == ["tok_2"]
    assert len(store.read(queries.log, "s2").events) == 1


def test_the_tools_of_a_caller_are_kept_until_others_are_stored(store):
    tools = (CallerTool(name="add", input_schema={"type": "object", "x": "\0"}),)
    lean = samples.session(status="completed")
    store.write(operations.PutSession(msgspec.structs.replace(lean, caller_tools=tools)))
    assert store.read(queries.session, "s1") == lean
    assert store.read(queries.sessions).records == [lean]
    store.write(operations.PutSession(lean))
    assert store.read(queries.with_tools, lean).caller_tools == tools
    for remove in (operations.PutSession(lean, ()), operations.PurgeSession("s1")):
        store.write(operations.PutSession(lean, tools))
        store.write(remove)
        assert store.read(queries.with_tools, lean).caller_tools == ()


def used(session: str, hour: int, agent: str = "scripted", **fields):
    return operations.AddUsage(session, hour, "proj_1", "prin_1", agent, "m", Used(**fields))


def test_what_is_used_is_added_up_and_what_is_unknown_stays_so(store):
    store.write(used("s1", 5, turns=1), used("s1", 5, input_tokens=3, measured_usd=0.25))
    store.write(used("s1", 5, input_tokens=2**53 - 1, turns=1), used("s1", 29, reported_usd=1.5))
    found = store.read(queries.usage_sums, "day")
    assert [(each.key, each.used) for each in found.sums] == [
        ("1970-01-02", Used(reported_usd=1.5)),
        ("1970-01-01", Used(input_tokens=2**53 + 2, measured_usd=0.25, turns=2)),
    ]
    late = store.read(queries.usage_sums, "session", 6)
    assert late.sums == [("s1", None, Used(reported_usd=1.5))]
    assert (late.total, late.more) == (Used(reported_usd=1.5), False)


def test_the_costliest_come_first_and_the_total_has_what_is_left_out(store):
    costs = {"a": {"input_tokens": 9}, "b": {"measured_usd": 2.0}, "c": {"reported_usd": 3.0}}
    store.write(*(used("s1", 5, agent, **fields) for agent, fields in costs.items()))
    found = store.read(queries.usage_sums, "agent", limit=2)
    assert ([each.key for each in found.sums], found.more) == (["c", "b"], True)
    assert found.total == Used(input_tokens=9, measured_usd=2.0, reported_usd=3.0)
    assert not store.read(queries.usage_sums, "agent", limit=3).more


def test_what_sessions_that_were_removed_have_used_stays_in_the_sums_of_their_project(store):
    for number in (1, 2):
        store.write(operations.PutSession(samples.session(number, status="completed")))
        store.write(used(f"s{number}", 5, input_tokens=3), used(f"s{number}", 6, turns=1))
    before = store.read(queries.usage_sums, "project", 0, "proj_1")
    assert before.total == Used(input_tokens=6, turns=2)
    store.write(operations.PurgeSession("s1"))
    store.write(operations.PurgeSession("s2"))
    assert store.read(queries.usage_sums, "project", 0, "proj_1") == before
    assert store.read(queries.usage_sums, "session").sums == [("", None, before.total)]


def test_a_live_session_is_not_purged(store):
    store.write(operations.PutSession(samples.session(1)), operations.AppendEvents((event(0),)))
    with pytest.raises(Conflict, match="live"):
        store.write(operations.PurgeSession("s1"))
    assert len(store.read(queries.log, "s1").events) == 1


def test_turns_are_found_by_state_and_by_call(store):
    store.write(
        operations.PutTurn(samples.turn(1, state="done")),
        operations.PutTurn(samples.turn(2, state="running", call_id="s0/1")),
        operations.PutTurn(samples.turn(3, call_id="s0/2")),
    )
    assert [turn.number for turn in store.read(queries.turns, "s1")] == [1, 2, 3]
    assert [t.number for t in store.read(queries.turns, "s1", ["queued", "running"])] == [2, 3]
    assert store.read(queries.turn_of_call, "s0/1").number == 2


# ---------------------------------------------------------------------- caller requests


def test_a_request_is_settled_exactly_once(store):
    """Invariant I2."""
    store.write(operations.PutCallerRequest(samples.request()))
    assert [r.id for r in store.read(queries.open_requests, "s1")] == ["req1"]
    result = store.write(
        operations.SettleCallerRequest("req1", "result", 2.0, result={"a": [None]}),
        operations.SettleCallerRequest("req1", "timeout", 3.0),
    )
    assert result == (True, False)
    settled = store.read(queries.request, "req1")
    assert (settled.outcome, settled.result, settled.settled_at) == ("result", {"a": [None]}, 2.0)
    assert store.read(queries.open_requests, "s1") == []
    with pytest.raises(Conflict):
        store.write(operations.PutCallerRequest(samples.request()))


def test_with_only_once_the_event_of_a_second_outcome_is_not_stored(store):
    store.write(operations.PutCallerRequest(samples.request()))
    settle = operations.SettleCallerRequest("req1", "result", 2.0, only_once=True)
    store.write(settle, operations.AppendEvents((event(0, type="caller_tool_settled"),)))
    with pytest.raises(Conflict):
        store.write(settle, operations.AppendEvents((event(1, type="caller_tool_settled"),)))
    assert len(store.read(queries.log, "s1").events) == 1


def test_an_unknown_request_cannot_be_settled(store):
    with pytest.raises(NotFound):
        store.write(operations.SettleCallerRequest("nothing", "result", 2.0))


def test_requests_are_found_by_caller_and_by_time(store):
    store.write(
        operations.PutCallerRequest(samples.request(1, call_id="7")),
        operations.PutCallerRequest(samples.request(2, session_id="s2", call_id="7")),
        operations.PutCallerRequest(samples.request(3, caller_id="you")),
    )
    mine = store.read(queries.open_requests, principal="prin_1", caller_id="me")
    assert [request.id for request in mine] == ["req1", "req2"]
    assert store.read(queries.open_requests, principal="prin_2", caller_id="me") == []
    store.write(operations.SettleCallerRequest("req1", "cancelled", 10.0))
    assert [one.id for one in store.read(queries.recent_requests, "s1", 10.0)] == ["req1", "req3"]
    assert [one.id for one in store.read(queries.recent_requests, "s1", 10.5)] == ["req3"]


# ---------------------------------------------------------------------- tokens, keys, the rest


def test_a_tokens_last_use_only_moves_forward(store):
    store.write(operations.PutToken(samples.token()))
    assert store.write(
        operations.TouchToken("tok_1", 10.0),
        operations.TouchToken("tok_1", 5.0),
        operations.TouchToken("tok_2", 1.0),
    ) == (True, True, False)
    assert store.read(queries.token, "tok_1").last_used_at == 10.0


def test_the_first_revocation_counts(store):
    store.write(operations.PutToken(samples.token()))
    assert store.write(
        operations.RevokeToken("tok_1", 10.0),
        operations.RevokeToken("tok_1", 20.0),
        operations.RevokeToken("no", 1.0),
    ) == (True, False, False)
    assert store.read(queries.token, "tok_1").revoked_at == 10.0


def test_an_idempotency_key_is_held_for_a_day(store):
    answer = {"session_id": "s1"}
    store.write(operations.PutIdempotency(samples.key(created_at=1000.0, answer=answer)))
    with pytest.raises(AlreadyExists):
        store.write(operations.PutIdempotency(samples.key(created_at=1000.0 + 86_399)))
    held = store.read(queries.idempotency, "prin_1", "session_spawn", "k")
    assert held.answer == answer
    store.write(operations.PutIdempotency(samples.key(created_at=1000.0 + 86_400)))
    assert store.read(queries.idempotency, "prin_1", "session_spawn", "k").answer is None
    assert store.write(operations.ExpireIdempotency(1000.0 + 86_401)) == (1,)
    assert store.read(queries.idempotency, "prin_1", "session_spawn", "k") is None


def test_the_epoch_counts_up_from_one(store):
    assert store.write(operations.BumpMeta("epoch"), operations.BumpMeta("epoch")) == (1, 2)
    assert store.read(queries.meta, "epoch") == "2"
    store.write(operations.PutMeta("instance", "inst_1"))
    store.write(operations.PutMeta("instance", "inst_2"))
    assert store.read(queries.meta, "instance") == "inst_2"


def test_containers_are_kept_until_they_are_removed(store):
    store.write(
        operations.PutContainer(samples.container(1)),
        operations.PutContainer(samples.container(2, project_id="proj_2")),
    )
    assert [one.id for one in store.read(queries.containers)] == ["cont_1", "cont_2"]
    assert [one.id for one in store.read(queries.containers, "proj_2")] == ["cont_2"]
    assert store.write(
        operations.DeleteContainer("cont_1"), operations.DeleteContainer("cont_1")
    ) == (
        True,
        False,
    )


def test_deleted_workspaces_are_not_listed(store):
    store.write(
        operations.PutWorkspace(samples.workspace(2)),
        operations.PutWorkspace(samples.workspace(1)),
        operations.PutWorkspace(samples.workspace(3, deleted_at=1.0)),
    )
    assert [one.id for one in store.read(queries.workspaces, "proj_1")] == ["w1", "w2"]
    assert store.read(queries.workspace, "w3").deleted_at == 1.0


# ---------------------------------------------------------------------- events


def test_a_replayed_event_is_left_out_and_the_rest_goes_on(store):
    """What is read again after a re-attach is ignored where it is already there."""
    first = tuple(event(n, source=f"p:{n}:0") for n in range(3))
    store.write(operations.AppendEvents(first))
    # The same transaction again, after its answer was lost, with one new event behind.
    (again,) = store.write(operations.AppendEvents((*first, event(3, source="p:3:0"))))
    assert [(one.index, one.source) for one in again] == [(3, "p:3:0")]
    # Replayed under new indexes.
    replayed = (event(4, source="p:2:0"), event(5, source="p:4:0"), event(6))
    (fresh,) = store.write(operations.AppendEvents(replayed))
    assert [(one.index, one.source) for one in fresh] == [(4, "p:4:0"), (5, None)]
    log = store.read(queries.log, "s1")
    assert [one.index for one in log.events] == list(range(6))
    assert [one.source for one in log.events[-2:]] == ["p:4:0", None]


@pytest.mark.parametrize("index", [0, 1, 3, 100])
def test_an_index_that_leaves_a_gap_or_was_given_fails_the_whole_transaction(store, index):
    store.write(operations.AppendEvents((event(0), event(1))))
    with pytest.raises(Conflict, match="goes on with index 2"):
        store.write(
            operations.PutSession(samples.session(9)),
            operations.AppendEvents((event(0, "s2"), event(index))),
        )
    assert store.read(queries.session, "s9") is None
    assert store.read(queries.bounds, "s2") == (0, -1)
    assert store.read(queries.bounds, "s1") == (0, 1)


def test_the_store_gives_the_index_where_minus_one_is_asked_for(store):
    (stored,) = store.write(operations.AppendEvents((event(-1), event(-1), event(-1, "s2"))))
    assert [(one.session_id, one.index) for one in stored] == [("s1", 0), ("s1", 1), ("s2", 0)]


def test_a_cut_log_says_so_and_goes_on_with_its_indexes(store):
    """Invariant I1: a gapless suffix or an explicit `truncated_before`."""
    store.write(operations.AppendEvents(tuple(event(n) for n in range(5))))
    assert store.write(operations.DeleteSessionEvents("s1", 2)) == (3,)
    log = store.read(queries.log, "s1")
    assert (log.truncated_before, [one.index for one in log.events]) == (3, [3, 4])
    assert store.read(queries.log, "s1", 2).truncated_before is None
    assert store.read(queries.log, "s1", 1).truncated_before == 3
    store.write(operations.DeleteSessionEvents("s1", 100))
    store.write(operations.DeleteSessionEvents("s1", 1))
    assert store.read(queries.bounds, "s1") == (5, 4)
    store.write(operations.AppendEvents((event(5),)))
    log = store.read(queries.log, "s1")
    assert (log.truncated_before, [one.index for one in log.events]) == (5, [5])


def test_a_seq_is_never_given_twice(store):
    store.write(operations.PutSession(samples.session(status="failed")))
    (first,) = store.write(operations.AppendEvents((event(0), event(1))))
    store.write(operations.PurgeSession("s1"))
    (second,) = store.write(operations.AppendEvents((event(0),)))
    assert second[0].seq > first[-1].seq
    assert store.read(queries.last_seq) >= second[0].seq


def test_a_read_is_capped_by_bytes_but_gives_one_event_at_least(store):
    big = {"text": "x" * 1000}
    store.write(operations.AppendEvents(tuple(event(n, data=big) for n in range(10))))
    capped = store.read(queries.log, "s1", -1, 500, 3500)
    assert ([one.index for one in capped.events], capped.more) == ([0, 1, 2], True)
    assert (capped.first_index, capped.last_index) == (0, 9)
    tiny = store.read(queries.log, "s1", 5, 500, 1)
    assert ([one.index for one in tiny.events], tiny.more) == ([6], True)
    last = store.read(queries.log, "s1", 8, 1, 1)
    assert ([one.index for one in last.events], last.more) == ([9], False)
    assert store.read(queries.log, "s1", -1, 3).more
    nothing = store.read(queries.log, "s1", 50)
    assert (nothing.events, nothing.more, nothing.truncated_before) == ([], False, None)


def test_a_caller_is_told_its_own_events_in_commit_order(store):
    store.write(
        operations.AppendEvents(
            (
                event(0, principal="p", caller_id="me"),
                event(0, "s2", principal="p", caller_id="me"),
                event(1, principal="p", caller_id="you"),
                event(2),
                event(3, principal="q", caller_id="me"),
                event(1, "s2", principal="p", caller_id="me"),
            )
        )
    )
    mine = store.read(queries.caller_events, "p", "me")
    assert [(one.session_id, one.index) for one in mine] == [("s1", 0), ("s2", 0), ("s2", 1)]
    assert [one.seq for one in mine] == sorted(one.seq for one in mine)
    assert store.read(queries.caller_events, "p", "me", mine[1].seq) == [mine[2]]
    assert store.read(queries.caller_events, "p", "me", 0, 2) == mine[:2]
    assert store.read(queries.caller_events, "p", "me", 0, 100, 1) == mine[:1]


def test_the_newest_source_of_a_process_is_found_by_position_not_by_text(store):
    sources = ["p1:9:0", "p1:9:1", None, "p1:100:0", "p10:5000:0", "p:1:1"]
    store.write(operations.AppendEvents(tuple(event(n, source=s) for n, s in enumerate(sources))))
    store.write(operations.AppendEvents((event(0, "s2", source="p1:7777:0"),)))
    assert store.read(queries.last_source, "s1", "p1") == (100, 0)
    assert store.read(queries.last_source, "s1", "p10") == (5000, 0)
    assert store.read(queries.last_source, "s1", "p2") == (-1, -1)


# ---------------------------------------------------------------------- payloads


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"text": "", "nul": "a\x00b", "emoji": "\U0001f600", "rtl": "\u202e"},
        {"big": 2**70, "small": -(2**70), "float": 1e-300, "none": None},
        {"deep": [[[[[[[[{"a": {}}]]]]]]]]},
        {"text": "x" * 5_000_000},
    ],
)
def test_a_payload_is_read_as_it_was_written(store, data):
    store.write(operations.AppendEvents((event(0, data=data),)))
    assert store.read(queries.event, "s1", 0).data == data


def test_a_lone_surrogate_does_not_keep_an_event_out_of_the_log(store):
    store.write(operations.AppendEvents((event(0, data={"a\ud800": ["b\udfff"]}),)))
    assert store.read(queries.event, "s1", 0).data == {"a\ufffd": ["b\ufffd"]}


def test_what_cannot_be_stored_is_refused_with_a_reason(store):
    loop: list[object] = []
    loop.append(loop)
    for data in ({"a": object()}, {"a": loop}):
        with pytest.raises(InvalidParameter, match="cannot be stored"):
            store.write(
                operations.PutMeta("kept", "no"), operations.AppendEvents((event(0, data=data),))
            )
    with pytest.raises(InvalidParameter):
        store.write(operations.PutProject(samples.project(name="\ud800")))
    with pytest.raises(InvalidParameter):
        store.write(operations.AppendEvents((event(0, source="\ud800"),)))
    assert store.read(queries.meta, "kept") is None
    assert store.write(operations.PutMeta("kept", "yes")) == (None,)
