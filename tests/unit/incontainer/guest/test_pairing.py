"""Upstream and downstream: who meets whom, and what flows between them."""

from __future__ import annotations

import random
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oubliette.incontainer import wire
from tests import selection
from tests.unit.incontainer.hostclient import Control, HostProcess, Link


def downstream(
    host: HostProcess, session: str = "s", secret: str = "sec", project: str = "p"
) -> Link:
    link = host.dial()
    link.send(wire.Downstream(project, session, secret).line())
    return link


def reason(link: Link) -> str | None:
    return wire.parse_error(link.line() + b"\n")


@pytest.fixture
def expecting(control: Control) -> Control:
    control.expect("s", "sec")
    return control


@pytest.mark.parametrize("first", ["upstream", "downstream"])
def test_the_two_halves_meet_in_either_order_and_bytes_flow_both_ways(
    host: HostProcess, expecting: Control, first: str
) -> None:
    if first == "upstream":
        up, down = expecting.upstream("s"), downstream(host)
    else:
        down, up = downstream(host), expecting.upstream("s")
    down.send(b"question")
    assert up.exactly(8) == b"question"
    up.send(b"answer")
    assert down.exactly(6) == b"answer"
    assert expecting.event("paired")["session"] == "s"
    assert up.is_silent()
    assert down.is_silent()


def test_bytes_sent_in_one_piece_with_the_header_are_not_lost(
    host: HostProcess, expecting: Control
) -> None:
    down = host.dial()
    down.send(wire.Downstream("p", "s", "sec").line() + b"first words")
    up = Link(host.socket)
    up.send(wire.Upstream("s", "p", 0, expecting.ticket("upstream")).line() + b"and back")
    assert up.exactly(11) == b"first words"
    assert down.exactly(8) == b"and back"
    up.close()


def test_each_session_gets_its_own_upstream_whatever_the_order(
    host: HostProcess, control: Control
) -> None:
    names = [f"s{i}" for i in range(20)]
    for name in names:
        control.expect(name, f"secret-{name}")
    ups = {name: control.upstream(name) for name in random.sample(names, len(names))}
    downs = {
        name: downstream(host, name, f"secret-{name}") for name in random.sample(names, len(names))
    }
    for name in names:
        downs[name].send(name.encode())
    for name in names:
        assert ups[name].exactly(len(name)) == name.encode()


@pytest.mark.parametrize(
    ("session", "secret", "project"),
    [("s", "wrong", "p"), ("s", "sec", "other"), ("unknown", "sec", "p"), ("s2", "sec", "p")],
)
def test_a_downstream_without_the_sessions_secret_is_refused_and_learns_nothing(
    host: HostProcess, expecting: Control, session: str, secret: str, project: str
) -> None:
    expecting.expect("s2", "other secret")
    link = downstream(host, session, secret, project)
    assert reason(link) == "unknown session or wrong secret"
    assert link.rest() == b""
    assert expecting.event("refused")["session"] == session


def test_a_second_client_is_refused_while_the_first_lives_and_taken_when_it_is_dead(
    host: HostProcess, expecting: Control
) -> None:
    first = downstream(host)
    up = expecting.upstream("s")
    expecting.event("paired")
    assert reason(downstream(host)) == "already connected"
    first.close()
    assert up.rest() == b""
    second = downstream(host)
    up = expecting.upstream("s")
    second.send(b"me")
    assert up.exactly(2) == b"me"


def test_a_second_waiting_client_is_refused_too(host: HostProcess, expecting: Control) -> None:
    first = downstream(host)
    expecting.settle()
    second = downstream(host)
    assert reason(second) == "already connected"
    first.close()
    third = downstream(host)
    expecting.settle()
    up = expecting.upstream("s")
    third.send(b"3")
    assert up.exactly(1) == b"3"


def test_a_client_that_died_behind_a_full_link_is_replaced(
    host: HostProcess, expecting: Control
) -> None:
    """The host does not read a side whose other side is full, so it has to look before it refuses."""
    down, up = downstream(host), expecting.upstream("s")
    expecting.event("paired")
    down.sock.settimeout(0.2)
    with pytest.raises(TimeoutError):
        while True:
            down.sock.sendall(bytes(1 << 20))  # nobody reads `up`
    down.close()
    again = downstream(host)
    up2 = expecting.upstream("s")
    again.send(b"here")
    assert up2.exactly(4) == b"here"
    up.close()


def test_a_newer_upstream_takes_over_and_the_client_is_told_by_its_link_closing(
    host: HostProcess, expecting: Control
) -> None:
    down, up = downstream(host), expecting.upstream("s")
    expecting.event("paired")
    newer = expecting.upstream("s")
    assert up.rest() == b""
    assert down.rest() == b""
    again = downstream(host)
    again.send(b"x")
    assert newer.exactly(1) == b"x"


@pytest.mark.parametrize("side", ["upstream", "downstream"])
def test_a_half_close_passes_on_and_the_other_direction_goes_on(
    host: HostProcess, expecting: Control, side: str
) -> None:
    down, up = downstream(host), expecting.upstream("s")
    one, other = (up, down) if side == "upstream" else (down, up)
    one.send(b"last words")
    one.half_close()
    assert other.rest() == b"last words"
    other.send(b"still heard")
    assert one.exactly(11) == b"still heard"
    other.half_close()
    assert one.rest() == b""
    assert expecting.settle()["links"] == 0


@pytest.mark.parametrize("side", ["upstream", "downstream"])
def test_when_one_side_goes_the_other_is_closed_after_all_its_bytes(
    host: HostProcess, expecting: Control, side: str
) -> None:
    down, up = downstream(host), expecting.upstream("s")
    expecting.event("paired")
    one, other = (up, down) if side == "upstream" else (down, up)
    sent = random.randbytes(3 << 20)
    sender = threading.Thread(target=lambda: (one.send(sent), one.close()))
    sender.start()
    assert other.rest() == sent
    sender.join()
    with pytest.raises(OSError):  # noqa: PT011
        for _ in range(100):
            other.send(b"x" * 65536)
    assert expecting.settle()["links"] == 0


def test_a_half_close_before_pairing_is_kept(host: HostProcess, expecting: Control) -> None:
    down = downstream(host)
    down.send(b"all I have")
    down.half_close()
    assert expecting.settle()["links"] == 1
    up = expecting.upstream("s")
    assert up.rest() == b"all I have"
    up.send(b"thanks")
    up.close()
    assert down.rest() == b"thanks"


def test_a_reader_that_stops_holds_the_writer_back_without_filling_the_host(
    host: HostProcess, expecting: Control
) -> None:
    down, up = downstream(host), expecting.upstream("s")
    expecting.event("paired")
    before = expecting.ask("stats")["rss"]
    up.sock.settimeout(0.3)
    sent = 0
    with pytest.raises(TimeoutError):
        while True:
            sent += up.sock.send(bytes(1 << 16))
    assert sent < 4 << 20
    assert expecting.ask("stats")["rss"] - before < 8 << 20
    # the other direction is not held back with it
    down.send(b"still here")
    assert up.exactly(10) == b"still here"
    up.close()
    assert len(down.rest()) == sent


def test_unexpect_cuts_the_links_and_forgets_the_secret(
    host: HostProcess, expecting: Control
) -> None:
    down, up = downstream(host), expecting.upstream("s")
    expecting.event("paired")
    assert expecting.ask("unexpect", session="s") == {"known": True}
    assert up.rest() == down.rest() == b""
    assert reason(downstream(host)) == "unknown session or wrong secret"
    assert expecting.ask("unexpect", session="s") == {"known": False}


def test_expecting_again_changes_nothing_and_a_new_secret_cuts_the_old_ones_link(
    host: HostProcess, expecting: Control
) -> None:
    down, up = downstream(host), expecting.upstream("s")
    expecting.event("paired")
    expecting.expect("s", "sec")
    down.send(b"1")
    assert up.exactly(1) == b"1"
    expecting.expect("s", "new")
    assert down.rest() == b""
    assert reason(downstream(host)) == "unknown session or wrong secret"


def test_an_upstream_that_came_before_its_announcement_is_found(
    host: HostProcess, control: Control
) -> None:
    up = control.upstream("s")
    control.expect("s", "sec")
    down = downstream(host)
    down.send(b"x")
    assert up.exactly(1) == b"x"


@pytest.mark.parametrize(("project", "depth"), [("other", 0), ("p", 1)])
def test_an_upstream_must_claim_what_was_announced(
    expecting: Control, project: str, depth: int
) -> None:
    """What a header claims is checked, never trusted."""
    link = expecting.upstream("s", project, depth)
    assert reason(link) == "project or depth is not the session's"


def test_hello_tells_which_sessions_are_paired(host: HostProcess, expecting: Control) -> None:
    expecting.expect("t", "x")
    links = downstream(host), expecting.upstream("s")
    expecting.event("paired")
    assert host.control().hello["sessions"] == [
        {"session": "s", "paired": True},
        {"session": "t", "paired": False},
    ]
    assert len(links) == 2


def test_any_number_of_reconnects_leaves_nothing_behind(
    host: HostProcess, expecting: Control
) -> None:
    fds = expecting.fds()
    for i in range(100):
        down, up = downstream(host), expecting.upstream("s")
        down.send(b"%d\n" % i)
        assert up.line() == b"%d" % i
        one, other = (down, up) if i % 2 else (up, down)
        one.close()
        assert other.rest() == b""
        other.close()
    assert expecting.fds() <= fds


# Bare clients


def test_bare_clients_are_paired_first_in_first_out_per_project(bare_host: HostProcess) -> None:
    """ "Pairs connections FIFO and pipes bytes bidirectionally"."""
    control = bare_host.control()
    ups = []
    for i in range(3):
        up = control.bare_upstream(f"s{i}")
        control.settle()
        ups.append(up)
    other = bare_host.dial()
    other.send(b"OUBLIETTE-DOWNSTREAM elsewhere\n")
    for i in range(3):
        down = bare_host.dial()
        down.send(b"OUBLIETTE-DOWNSTREAM p\n%d" % i)
        assert ups[i].exactly(1) == b"%d" % i
        ups[i].send(b"ok")
        assert down.exactly(2) == b"ok"
    assert other.is_silent()


def test_a_bare_downstream_may_come_first(bare_host: HostProcess) -> None:
    control = bare_host.control()
    downs = [bare_host.dial() for _ in range(2)]
    for i, down in enumerate(downs):
        down.send(b"OUBLIETTE-DOWNSTREAM p\n%d" % i)
        control.settle()  # both are served in the order in which they came
    for i in range(2):
        up = control.bare_upstream("s")
        assert up.exactly(1) == b"%d" % i


def test_a_bare_client_that_left_is_not_paired(bare_host: HostProcess) -> None:
    control = bare_host.control()
    gone = bare_host.dial()
    gone.send(b"OUBLIETTE-DOWNSTREAM p\n")
    assert control.settle()["links"] == 1
    gone.close()
    assert control.settle()["links"] == 0
    down = bare_host.dial()
    down.send(b"OUBLIETTE-DOWNSTREAM p\nhere")
    up = control.bare_upstream("s")
    assert up.exactly(4) == b"here"


def test_a_bare_upstream_that_left_is_not_paired(bare_host: HostProcess) -> None:
    control = bare_host.control()
    gone, stays = control.bare_upstream("gone"), None
    control.settle()
    stays = control.bare_upstream("stays")
    control.settle()
    gone.close()
    down = bare_host.dial()
    down.send(b"OUBLIETTE-DOWNSTREAM p\nhere")
    assert stays.exactly(4) == b"here"


def test_a_bare_client_never_gets_the_upstream_of_an_announced_session(
    bare_host: HostProcess,
) -> None:
    control = bare_host.control()
    control.expect("s", "sec")
    up = control.upstream("s")
    bare = bare_host.dial()
    bare.send(b"OUBLIETTE-DOWNSTREAM p\n")
    down = downstream(bare_host)
    down.send(b"x")
    assert up.exactly(1) == b"x"
    assert bare.is_silent()


def test_a_session_has_a_bare_client_beside_its_own_and_neither_gets_the_others_link(
    bare_host: HostProcess,
) -> None:
    control = bare_host.control()
    control.expect("s", "sec")
    bare_up, up = control.bare_upstream("s"), control.upstream("s")
    control.settle()
    bare, down = bare_host.dial(), downstream(bare_host)
    bare.send(b"OUBLIETTE-DOWNSTREAM p\nbare")
    down.send(b"own")
    assert bare_up.exactly(4) == b"bare"
    assert up.exactly(3) == b"own"
    assert bare_up.is_silent()
    assert up.is_silent()


def test_an_announcement_does_not_take_an_upstream_that_is_there_for_bare_clients(
    bare_host: HostProcess,
) -> None:
    control = bare_host.control()
    up = control.bare_upstream("s")
    control.settle()
    control.expect("s", "sec")
    down = downstream(bare_host)
    down.send(b"secret")
    bare = bare_host.dial()
    bare.send(b"OUBLIETTE-DOWNSTREAM p\nbare")
    assert up.exactly(4) == b"bare"
    assert down.is_silent()


def connected(control: Control, host: HostProcess, session: str | None, says: str) -> None:
    """A client without a secret, in a process that the server has started for `session`."""
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(sys.argv[2].encode()); s.recv(1)"
    )
    line = f"OUBLIETTE-DOWNSTREAM p\n{says}"
    # through a shell: the client is a grandchild
    command = 'python3 -c "$1" "$2" "$3"; true'
    control.start(says, "sh", "-c", command, "sh", program, host.socket, line, session=session)


def test_a_bare_client_of_an_agent_meets_its_own_session_whatever_the_order(
    bare_host: HostProcess,
) -> None:
    control = bare_host.control()
    for name in ("a", "b"):
        control.expect(name, f"secret-{name}")
    connected(control, bare_host, "b", "from-b")  # before any upstream
    up_a = control.bare_upstream("a")
    up_b = control.bare_upstream("b")
    assert up_b.exactly(6) == b"from-b"
    connected(control, bare_host, "b", "again")  # another one, with a's upstream waiting
    assert up_a.is_silent()
    connected(control, bare_host, "a", "from-a")
    assert up_a.exactly(6) == b"from-a"
    assert control.bare_upstream("b").exactly(5) == b"again"


def test_a_bare_client_of_nobodys_process_is_paired_first_in_first_out(
    bare_host: HostProcess,
) -> None:
    control = bare_host.control()
    ups = []
    for name in ("a", "b"):
        control.expect(name, f"secret-{name}")
        ups.append(control.bare_upstream(name))
        control.settle()
    connected(control, bare_host, None, "one")
    assert ups[0].exactly(3) == b"one"
    connected(control, bare_host, "not-announced", "two")
    assert ups[1].exactly(3) == b"two"


def test_a_bare_client_of_another_project_than_its_sessions_is_refused(
    bare_host: HostProcess,
) -> None:
    control = bare_host.control()
    control.expect("s", "sec", project="q")
    other = control.bare_upstream("other", project="p")
    connected(control, bare_host, "s", "stray")
    assert control.event("refused")["reason"] == "project is not the session's"
    assert other.is_silent()


def test_nobody_without_proof_plays_the_server_to_bare_clients(bare_host: HostProcess) -> None:
    control = bare_host.control()
    control.expect("s", "sec")
    for header in (b"OUBLIETTE-UPSTREAM s p 0\n", b"OUBLIETTE-UPSTREAM other p 0\n"):
        link = bare_host.dial()
        link.send(header)
        assert reason(link) == "a ticket is needed"


def test_an_upstream_for_bare_clients_is_refused_where_bare_is_off(
    host: HostProcess, control: Control
) -> None:
    assert reason(control.bare_upstream("s")) == "bare clients are not accepted"


def test_the_host_says_whether_it_takes_bare_clients(
    host: HostProcess, bare_host: HostProcess
) -> None:
    assert "bare" in bare_host.control().hello["features"]
    assert "bare" not in host.control().hello["features"]


def test_bare_headers_are_refused_where_bare_is_off(host: HostProcess) -> None:
    link = host.dial()
    link.send(b"OUBLIETTE-DOWNSTREAM p\n")
    assert reason(link) == "a pairing secret is needed"
    link = host.dial()
    link.send(b"OUBLIETTE-UPSTREAM s p 0\n")
    assert reason(link) == "a ticket is needed"


def test_the_relay_subcommand_needs_no_key_and_pairs_bare_clients() -> None:
    with HostProcess(command="relay") as relay:
        up, down = relay.dial(), relay.dial()
        up.send(b"OUBLIETTE-UPSTREAM s p 0\n")
        down.send(b"OUBLIETTE-DOWNSTREAM p\nhi")
        assert up.exactly(2) == b"hi"
        link = relay.dial()
        link.send(wire.ControlHeader("0" * 32).line())
        assert reason(link) == "this relay has no key"


def test_sixty_four_unpaired_links_wait_and_the_next_is_refused(bare_host: HostProcess) -> None:
    control = bare_host.control()
    for _ in range(64):
        bare_host.dial().send(b"OUBLIETTE-DOWNSTREAM p\n")
    last = bare_host.dial()
    last.send(b"OUBLIETTE-DOWNSTREAM p\n")
    assert reason(last) == "too many unpaired links"
    waiting = [control.bare_upstream("s", project="q") for _ in range(64)]
    assert reason(control.bare_upstream("s", project="q")) == "too many unpaired links"
    assert control.settle()["links"] == 128
    first = control.bare_upstream("s")
    control.event("paired")
    bare_host.dial().send(b"OUBLIETTE-DOWNSTREAM p\n")
    assert control.settle()["links"] == 130
    for link in (*waiting, first):
        link.close()


def test_as_many_projects_as_links_may_wait_and_no_more(bare_host: HostProcess) -> None:
    for i in range(64):
        bare_host.dial().send(b"OUBLIETTE-DOWNSTREAM p%d\n" % i)
    last = bare_host.dial()
    last.send(b"OUBLIETTE-DOWNSTREAM p64\n")
    assert reason(last) == "too many unpaired links"


# Properties

moves = st.lists(
    st.tuples(st.sampled_from(["up", "down"]), st.sampled_from([1, 10, 1000, 300_000])), max_size=12
)


@pytest.fixture(scope="module")
def shared() -> HostProcess:
    with HostProcess() as process:
        yield process


@given(moves, st.sampled_from(["up", "down", "both"]), st.integers(0, 2**32))
@settings(max_examples=selection.examples(40))
def test_whatever_both_sides_send_arrives_once_and_in_order(
    shared: HostProcess, plan: list[tuple[str, int]], closer: str, seed: int
) -> None:
    rng = random.Random(seed)
    control = shared.control()
    control.expect("prop", "sec")
    down, up = downstream(shared, "prop"), control.upstream("prop")
    control.event("paired")
    sides = {"up": up, "down": down}
    sent = {"up": b"", "down": b""}
    got = {"up": b"", "down": b""}

    def read(name: str) -> None:
        got[name] = sides[name].rest()

    readers = [threading.Thread(target=read, args=(name,)) for name in sides]
    for reader in readers:
        reader.start()
    for name, size in plan:
        data = rng.randbytes(size)
        sides[name].send(data)
        sent[name] += data
    for name in (
        ("up", "down") if closer == "both" else (closer, {"up": "down", "down": "up"}[closer])
    ):
        sides[name].half_close()
    for reader in readers:
        reader.join(10)
    for link in (up, down):
        link.close()
    assert got == {"up": sent["down"], "down": sent["up"]}
    control.ask("unexpect", session="prop")


def test_cutting_the_upstream_after_every_byte_loses_and_repeats_nothing_that_was_sent(
    shared: HostProcess,
) -> None:
    """Each cut point of a short conversation; the client then reconnects and is served again."""
    control = shared.control()
    control.expect("cut", "sec")
    message = b'{"jsonrpc":"2.0","id":1}\n{"x":"y"}\n'
    for cut in range(len(message) + 1):
        down, up = downstream(shared, "cut"), control.upstream("cut")
        down.send(b"?\n")
        assert up.line() == b"?"
        up.send(message[:cut])
        up.close()
        assert down.rest() == message[:cut]
        down.close()
        # and the other way round
        down, up = downstream(shared, "cut"), control.upstream("cut")
        down.send(message[:cut])
        down.close()
        assert up.rest() == message[:cut]
        up.close()


def test_cutting_the_header_after_every_byte_leaves_nothing_behind(shared: HostProcess) -> None:
    control = shared.control()
    control.expect("head", "sec")
    fds = control.fds()
    header = wire.Downstream("p", "head", "sec").line()
    for cut in range(len(header) + 1):
        link = Link(shared.socket)
        link.send(header[:cut])
        if cut % 2:
            link.sock.shutdown(socket.SHUT_RDWR)
        link.close()
    assert control.settle()["links"] == 0
    assert control.fds() <= fds
