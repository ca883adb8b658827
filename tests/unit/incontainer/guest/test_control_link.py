"""The control link: who may hold it, and how it answers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from oubliette.incontainer import wire
from tests.unit.incontainer.hostclient import Control, HostProcess, Link, Refusal


@pytest.fixture(scope="module")
def shared() -> Iterator[HostProcess]:
    with HostProcess() as process:
        yield process


@pytest.fixture
def link(shared: HostProcess) -> Control:
    return shared.control()


def challenged(host: HostProcess, nonce: str = "a" * 32) -> tuple[Link, dict]:
    link = host.dial()
    link.send(wire.ControlHeader(nonce).line())
    return link, json.loads(link.line())


def test_the_host_proves_itself_first_and_says_hello_after_the_servers_proof(
    shared: HostProcess,
) -> None:
    link, first = challenged(shared)
    assert first["proof"] == wire.host_proof(shared.key, "a" * 32, first["challenge"])
    assert len(first["challenge"]) == 32
    shared.epoch += 1
    proof = wire.server_proof(shared.key, first["challenge"], "a" * 32)
    link.send(
        wire.encode_json(
            {"proof": proof, "epoch": shared.epoch, "versions": [1, 9], "new": "field"}
        )
    )
    hello = json.loads(link.line())
    assert hello["event"] == "hello"
    assert hello["versions"] == [1, 2]
    assert hello["pid"] == shared.pid
    assert hello["boot"] == first["boot"]
    assert hello["procs"] == hello["sessions"] == []


def test_the_challenge_is_new_each_time_and_the_boot_is_not(shared: HostProcess) -> None:
    seen = [challenged(shared)[1] for _ in range(5)]
    assert len({first["challenge"] for first in seen}) == 5
    assert len({first["boot"] for first in seen}) == 1


@pytest.mark.parametrize(
    "answer",
    [
        {"proof": "0" * 64, "epoch": 10**9},
        {"proof": None, "epoch": 10**9},
        {"proof": "", "epoch": 10**9},
        {"epoch": 10**9},
        {},
    ],
)
def test_without_the_right_proof_the_link_is_refused(
    shared: HostProcess, link: Control, answer: dict
) -> None:
    stranger, _ = challenged(shared)
    stranger.send(wire.encode_json(answer))
    assert wire.parse_error(stranger.rest()) == "bad proof"
    assert link.ask("stats")["procs"] == 0  # the server's own link is as it was


def test_the_hosts_own_proof_does_not_pass_for_the_servers(
    shared: HostProcess, link: Control
) -> None:
    """An agent can make the host compute HMACs over nonces of its choice; they are of no use to it."""
    stranger, first = challenged(shared)
    stranger.send(wire.encode_json({"proof": first["proof"], "epoch": 10**9}))
    assert wire.parse_error(stranger.rest()) == "bad proof"
    # nor one obtained with the challenge played back as a nonce
    stranger, first = challenged(shared)
    _, second = challenged(shared, first["challenge"])
    stranger.send(wire.encode_json({"proof": second["proof"], "epoch": 10**9}))
    assert wire.parse_error(stranger.rest()) == "bad proof"


def test_a_recorded_proof_cannot_be_replayed(shared: HostProcess) -> None:
    nonce = os.urandom(16).hex()
    link, first = challenged(shared, nonce)
    shared.epoch += 1
    answer = wire.encode_json(
        {"proof": wire.server_proof(shared.key, first["challenge"], nonce), "epoch": shared.epoch}
    )
    link.send(answer)
    assert json.loads(link.line())["event"] == "hello"
    replay, _ = challenged(shared, nonce)
    replay.send(answer)
    assert wire.parse_error(replay.rest()) == "bad proof"


@pytest.mark.parametrize("epoch", [-1, True, "7", None, 1.5])
def test_an_epoch_that_is_no_number_is_refused_even_with_the_proof(
    shared: HostProcess, epoch: object
) -> None:
    link, first = challenged(shared)
    link.send(
        wire.encode_json(
            {"proof": wire.server_proof(shared.key, first["challenge"], "a" * 32), "epoch": epoch}
        )
    )
    assert wire.parse_error(link.rest()) == "epoch is not a number"


@pytest.mark.parametrize("versions", [[3, 4], "x", [], 5, [[], {}]])
def test_a_server_that_speaks_no_common_version_is_refused(
    shared: HostProcess, versions: object
) -> None:
    link, first = challenged(shared)
    proof = wire.server_proof(shared.key, first["challenge"], "a" * 32)
    link.send(wire.encode_json({"proof": proof, "epoch": shared.epoch, "versions": versions}))
    assert wire.parse_error(link.rest()) == "no common version"


def test_a_newer_server_evicts_the_older_one_which_cannot_come_back(shared: HostProcess) -> None:
    older = shared.control()
    newer = shared.control()
    assert json.loads(older.line()) == {"event": "evicted"}
    assert older.rest() == b""
    with pytest.raises(Refusal, match="stale epoch"):
        shared.control(shared.epoch - 1)
    assert newer.ask("stats")["procs"] == 0


def test_the_same_server_may_come_again_and_its_tickets_stay_good(shared: HostProcess) -> None:
    first = shared.control()
    ticket = first.ticket("upstream")
    again = shared.control(shared.epoch)
    assert json.loads(first.line()) == {"event": "evicted"}
    up = shared.dial()
    up.send(wire.Upstream("s", "p", 0, ticket).line())
    assert again.settle()["links"] == 1
    up.close()
    again.settle()


def test_tickets_of_an_older_server_are_worthless(shared: HostProcess) -> None:
    ticket = shared.control().ticket("upstream")
    shared.control()
    up = shared.dial()
    up.send(wire.Upstream("s", "p", 0, ticket).line())
    assert wire.parse_error(up.rest()) == "bad ticket"


def test_a_ticket_is_good_once_and_for_its_purpose(shared: HostProcess, link: Control) -> None:
    link.start("once", "sleep", "60")
    ticket = link.ticket("attach")
    up = shared.dial()
    up.send(wire.Upstream("s", "p", 0, ticket).line())
    assert wire.parse_error(up.rest()) == "bad ticket"
    again = shared.dial()
    again.send(wire.Attach("once", 0, 0, ticket).line())
    assert wire.parse_error(again.rest()) == "bad ticket"
    with pytest.raises(Refusal) as refused:
        link.ask("ticket", purpose="host")
    assert refused.value.code == "invalid"
    tickets = link.ask("ticket", purpose="attach", count=256)["tickets"]
    assert len(set(tickets)) == 256
    link.ask("signal", proc="once", signal="KILL")
    link.event("exited", proc="once")
    link.ask("forget", proc="once")


def test_a_ticket_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    from oubliette.incontainer.guest import tickets

    now = 100.0
    monkeypatch.setattr(tickets.time, "monotonic", lambda: now)
    table = tickets.Tickets()
    first, second = table.issue("attach", 2)
    now = 129.9
    assert table.redeem(first, "attach")
    now = 130.0
    assert not table.redeem(second, "attach")
    table.issue("attach", 1)
    assert len(table._issued) == 1


def test_tickets_nobody_uses_do_not_pile_up() -> None:
    from oubliette.incontainer.guest import tickets

    table = tickets.Tickets()
    for _ in range(40):
        last = table.issue("attach", 256)
    assert len(table._issued) <= tickets.OUTSTANDING
    assert all(table.redeem(ticket, "attach") for ticket in last)


def test_an_unknown_verb_is_answered_and_unknown_fields_are_ignored(link: Control) -> None:
    with pytest.raises(Refusal) as refused:
        link.ask("dance")
    assert refused.value.code == "unknown_verb"
    assert "dance" in refused.value.message
    assert link.ask("stats", future="field")["procs"] == 0


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 50_000])
def test_a_broken_line_is_answered_and_the_next_one_works(link: Control, line: bytes) -> None:
    link.send(line + b"\n")
    with pytest.raises(Refusal) as refused:
        link.answer(None)
    assert refused.value.code == "invalid"
    assert link.ask("stats")["procs"] == 0


@pytest.mark.parametrize(
    "request_", [{"verb": None}, {"verb": ["start"]}, {"verb": {}}, {"id": {"x": 1}, "verb": 3}]
)
def test_a_request_without_a_verb_is_answered_under_its_id(link: Control, request_: dict) -> None:
    link.send(wire.encode_json(request_))
    with pytest.raises(Refusal) as refused:
        link.answer(request_.get("id"))
    assert refused.value.code == "unknown_verb"


def test_an_oversize_line_is_answered_and_the_next_one_works(link: Control) -> None:
    link.send(b"x" * (wire.MAX_CONTROL_LINE + 1) + b"\n")
    with pytest.raises(Refusal) as refused:
        link.answer(None)
    assert refused.value.code == "too_large"
    assert link.ask("stats")["procs"] == 0


def test_requests_cut_anywhere_are_answered_in_order(link: Control) -> None:
    stream = b"".join(
        wire.encode_json({"id": i, "verb": "ticket", "purpose": "attach"}) for i in range(20)
    )
    for start in range(0, len(stream), 7):
        link.send(stream[start : start + 7])
    for i in range(20):
        assert len(link.answer(i)["tickets"]) == 1


@pytest.mark.whole
def test_a_server_that_does_not_read_is_held_back_and_then_served(
    link: Control, shared: HostProcess
) -> None:
    count = 4000
    link.sock.settimeout(10)
    pid = os.fork()
    if pid == 0:
        for i in range(count):
            link.sock.sendall(
                wire.encode_json({"id": i, "verb": "ticket", "purpose": "attach", "count": 20})
            )
        os._exit(0)
    for i in range(count):
        assert len(link.answer(i)["tickets"]) == 20
    assert os.waitpid(pid, 0)[1] == 0
    assert link.ask("stats")["rss"] < 64 << 20


def test_stats_count_what_is_held(link: Control) -> None:
    stats = link.ask("stats")
    assert stats["rss"] > 1 << 20
    assert stats["fds"] > 3
    assert {"procs", "links", "spool_bytes", "uptime_seconds"} <= stats.keys()


def test_expect_names_the_field_that_is_wrong(link: Control) -> None:
    good = {"session": "s", "project": "p", "digest": "0" * 64, "depth": 0}
    for field, value in [
        ("session", ""),
        ("project", "a b"),
        ("digest", "short"),
        ("depth", -1),
        ("session", 5),
    ]:
        with pytest.raises(Refusal) as refused:
            link.ask("expect", **{**good, field: value})
        assert refused.value.code == "invalid"
        assert refused.value.message.startswith(field)


@pytest.mark.whole
def test_cutting_the_link_after_every_byte_of_a_start_gives_one_process_or_none(
    shared: HostProcess,
) -> None:
    """`start` is idempotent by id, so a server that does not know repeats it."""
    request = {
        "id": 1,
        "verb": "start",
        "proc": "",
        "argv": ["sleep", "60"],
        "env": {"PATH": os.environ["PATH"]},
    }
    size = len(wire.encode_json({**request, "proc": "cut-000"}))
    for cut in range(size + 1):
        proc = f"cut-{cut:03}"
        line = wire.encode_json({**request, "proc": proc})
        first = shared.control()
        first.send(line[:cut])
        first.close()
        second = shared.control()
        known = [record["pid"] for record in second.hello["procs"] if record["id"] == proc]
        second.send(line)
        pid = second.answer(1)["pid"]
        assert known in ([], [pid])
        second.ask("signal", proc=proc, signal="KILL")
        second.event("exited", proc=proc)
        second.ask("forget", proc=proc)
        second.close()
