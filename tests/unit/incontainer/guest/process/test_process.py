"""Processes of the host: how they start, what they get, how they end, what is kept of them."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from tests.unit.incontainer.hostclient import Control, HostProcess, Refusal

needs_root = pytest.mark.requires("root")


@pytest.fixture(scope="module")
def shared() -> Iterator[HostProcess]:
    with HostProcess() as process:
        yield process


@pytest.fixture
def link(shared: HostProcess) -> Control:
    return shared.control()


@pytest.fixture
def name() -> str:
    return f"proc-{uuid.uuid4()}"


def output(link: Control, name: str, *argv: str, **fields: object) -> str:
    link.start(name, *argv, **fields)
    attached = link.attach(name)
    attached.until_exit()
    return attached.out.decode()


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until_dead(*pids: int) -> None:
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert poll.poll(5000), f"{pid} is still alive"
        os.close(fd)


# Start


def test_starting_again_with_the_same_id_gives_the_same_process(
    link: Control, shared: HostProcess, name: str
) -> None:
    pid = link.start(name, "sleep", "60")
    assert link.start(name, "sleep", "60") == pid
    assert shared.control().start(name, "something", "else") == pid
    link = shared.control()
    link.ask("signal", proc=name, signal="KILL")
    link.event("exited", proc=name)
    assert link.start(name, "sleep", "60") == pid


def test_two_starts_at_once_give_one_process(link: Control, name: str) -> None:
    fields = {"proc": name, "argv": ["sleep", "60"], "env": {"PATH": os.environ["PATH"]}}
    first, second = (link.request("start", **fields) for _ in range(2))
    assert link.answer(first) == link.answer(second)
    link.ask("signal", proc=name, signal="KILL")


@pytest.mark.parametrize(
    ("argv", "fields", "code", "says"),
    [
        (["no-such-program"], {}, "not_found", "no-such-program"),
        (["/no/such/program"], {}, "not_found", "/no/such/program"),
        (["/etc/passwd"], {}, "permission", "/etc/passwd"),
        (["/etc/passwd/x"], {}, "not_found", "/etc/passwd/x"),
        (["true"], {"cwd": "/no/such/folder"}, "bad_cwd", "/no/such/folder"),
        (["true"], {"cwd": "/etc/passwd"}, "bad_cwd", "/etc/passwd"),
        ([], {}, "invalid", "argv"),
        ([""], {}, "invalid", "argv"),
        (["true", 1], {}, "invalid", "argv"),
        (["true", "a\0b"], {}, "invalid", "argv"),
        (["true", "\ud800"], {}, "invalid", "argv"),
        ("true", {}, "invalid", "argv"),
        (["true"], {"env": {"A": 1}}, "invalid", "env.A"),
        (["true"], {"env": {"A=B": "1"}}, "invalid", "env"),
        (["true"], {"env": []}, "invalid", "env"),
        (["true"], {"uid": -1}, "invalid", "uid"),
        (["true"], {"uid": True}, "invalid", "uid"),
        (["true"], {"limits": {"nofile": "many"}}, "invalid", "nofile"),
        (["true"], {"limits": 3}, "invalid", "limits"),
        (["true"], {"deadline_seconds": 0}, "invalid", "deadline_seconds"),
        (["true"], {"spool_bytes": 1}, "invalid", "spool_bytes"),
        (["true"], {"stdin": "yes"}, "invalid", "stdin"),
        (["true"], {"session": "two words"}, "invalid", "session"),
        (["x" * 200_000], {}, "not_found", "xxx"),
        (["true", "x" * 200_000], {}, "limit", "true"),
    ],
)
def test_a_start_that_cannot_be_says_why_and_names_it(
    link: Control,
    shared: HostProcess,
    name: str,
    argv: list[str],
    fields: dict,
    code: str,
    says: str,
) -> None:
    fds = link.fds()
    with pytest.raises(Refusal) as refused:
        # Not our own PATH: a folder of it that we may not read is a refusal of another kind.
        link.ask("start", proc=name, **{"argv": argv, "env": {"PATH": os.defpath}, **fields})
    assert refused.value.code == code
    assert says in refused.value.message
    assert link.fds() <= fds
    assert name not in [proc["id"] for proc in shared.control().hello["procs"]]


def test_a_failed_start_can_be_tried_again(link: Control, name: str) -> None:
    with pytest.raises(Refusal):
        link.start(name, "no-such-program")
    assert output(link, name, "echo", "now") == "now\n"


def test_the_environment_is_what_was_asked_for_and_the_cookie(link: Control, name: str) -> None:
    got = output(link, name, "env", env={"PATH": os.environ["PATH"], "A": "ä b"})
    assert sorted(got.splitlines()) == sorted(
        ["A=ä b", f"OUBLIETTE_PROC={name}", f"PATH={os.environ['PATH']}"]
    )


def test_the_process_leads_its_own_session_and_group(link: Control, name: str) -> None:
    pid = link.start(name, "sleep", "60")
    assert os.getsid(pid) == os.getpgid(pid) == pid
    link.ask("signal", proc=name, signal="KILL")


def test_no_descriptor_but_the_three_reaches_the_process(
    link: Control, shared: HostProcess, name: str
) -> None:
    link.start(f"other-{name}", "sleep", "60")
    attached = link.attach(f"other-{name}")
    script = "import os; print(sorted(int(fd) for fd in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + fd)))"
    assert output(link, name, sys.executable, "-c", script) == "[0, 1, 2]\n"
    attached.close()
    link.ask("signal", proc=f"other-{name}", signal="KILL")


def test_the_process_has_the_default_signals_and_an_empty_mask(link: Control, name: str) -> None:
    status = output(link, name, "cat", "/proc/self/status")
    values = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    reserved = 1 << 31 | 1 << 32  # 32 and 33 are the C library's own; nobody can set them
    for field in ("SigBlk", "SigIgn", "SigCgt"):
        assert int(values[field], 16) & ~reserved == 0, (field, values[field])


def test_the_process_cannot_gain_privileges_and_dies_with_its_host(name: str) -> None:
    with HostProcess() as host:
        link = host.control()
        assert output(link, name, "grep", "NoNewPrivs", "/proc/self/status").split() == [
            "NoNewPrivs:",
            "1",
        ]
        pid = link.start(f"{name}-2", "sleep", "60")
        host.process.kill()
        host.process.wait()
        wait_until_dead(pid)


@needs_root
def test_another_user_is_taken_on_with_its_group_and_no_others(link: Control, name: str) -> None:
    status = output(link, name, "cat", "/proc/self/status", uid=4321, gid=1234)
    values = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    assert values["Uid"].split() == ["4321"] * 4
    assert values["Gid"].split() == ["1234"] * 4
    assert values["Groups"].split() in ([], ["1234"])
    assert int(values["CapEff"], 16) == 0


@needs_root
def test_the_group_is_the_users_own_unless_one_is_given_and_the_folder_is_entered_as_that_user(
    link: Control, name: str
) -> None:
    assert output(link, name, "id", "-g", uid=4321) == "4321\n"
    with pytest.raises(Refusal) as refused:
        link.start(f"{name}-2", "true", uid=4321, cwd="/root")
    assert refused.value.code == "bad_cwd"


@needs_root
def test_the_first_other_user_gets_the_socket_so_that_its_client_can_connect(name: str) -> None:
    script = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print('in')"
    )
    with HostProcess() as host:
        host.folder.chmod(0o755)
        link = host.control()
        assert output(link, name, "/usr/bin/python3", "-c", script, host.socket, uid=4321) == "in\n"
        state = os.stat(host.socket)
        assert (state.st_uid, state.st_mode & 0o777) == (4321, 0o600)


@needs_root
def test_a_host_that_is_not_root_runs_processes_as_itself_and_as_nobody_else(name: str) -> None:
    with HostProcess() as host:
        host.folder.chmod(0o777)
        inner = str(host.folder / "in.sock")
        link = host.control()
        key = os.urandom(32)
        key_file = host.folder / "inner-key"
        key_file.write_bytes(key)
        key_file.chmod(0o644)
        pyz = host.folder / "o.pyz"
        from oubliette.incontainer.build import build

        build(pyz)
        link.start(
            name,
            "/usr/bin/python3",
            str(pyz),
            "host",
            "--socket",
            inner,
            "--key",
            str(key_file),
            "--ready-fd",
            "1",
            uid=4321,
        )
        ready = link.attach(name)
        ready.until(lambda: ready.out == b"ready\n")
        control = Control(inner, key, 1)
        control.start("same", "id", "-u", uid=4321)
        attached = control.attach("same")
        attached.until_exit()
        assert attached.out == b"4321\n"
        with pytest.raises(Refusal) as refused:
            control.start("other", "true", uid=0)
        assert refused.value.code == "permission"
        control.close()
        attached.close()
        link.ask("signal", proc=name, signal="TERM")
        assert link.event("exited", proc=name)["exit"] == {"code": 0, "signal": None}


def test_limits_are_set_and_files_are_limited_as_before_the_host(link: Control, name: str) -> None:
    limits = {
        "nofile": 77,
        "core": 0,
        "cpu_seconds": 100,
        "nproc": 5000,
        "as_bytes": 1 << 30,
        "unknown": 3,
    }
    script = "import resource as r; print([r.getrlimit(x)[0] for x in (r.RLIMIT_NOFILE, r.RLIMIT_CORE, r.RLIMIT_CPU, r.RLIMIT_NPROC, r.RLIMIT_AS)])"
    assert (
        output(link, name, sys.executable, "-c", script, limits=limits)
        == f"[77, 0, 100, 5000, {1 << 30}]\n"
    )
    script = "import resource as r; print(r.getrlimit(r.RLIMIT_NOFILE))"
    import resource

    assert (
        output(link, f"{name}-2", sys.executable, "-c", script)
        == f"{resource.getrlimit(resource.RLIMIT_NOFILE)}\n"
    )


def test_stdin_may_be_off_and_stderr_may_go_with_stdout(link: Control, name: str) -> None:
    link.start(name, "sh", "-c", "cat; echo a; echo b >&2; echo c", stdin=False, merge_stderr=True)
    attached = link.attach(name)
    attached.until_exit()
    assert (attached.out, attached.err) == (b"a\nb\nc\n", b"")


# Signals and the end


def test_a_signal_goes_by_number_or_name_and_delivered_says_whether_somebody_was_there(
    link: Control, name: str
) -> None:
    link.start(name, "sleep", "60")
    assert link.ask("signal", proc=name, signal=0) == {"delivered": True}
    assert link.ask("signal", proc=name, signal="SIGTERM") == {"delivered": True}
    assert link.event("exited", proc=name)["exit"] == {"code": None, "signal": signal.SIGTERM}
    assert link.ask("signal", proc=name, signal="KILL") == {"delivered": False}
    for bad in ("NONSENSE", 99, None, "_DFL", "DFL"):
        with pytest.raises(Refusal) as refused:
            link.ask("signal", proc=name, signal=bad)
        assert refused.value.code == "invalid"


TREE = """
import os, subprocess, sys
children = [
    subprocess.Popen(["sleep", "60"]),
    subprocess.Popen(["setsid", "sleep", "60"]),
    subprocess.Popen(["sh", "-c", "setsid sh -c 'sleep 60 & echo $!; exec >&-; wait' & wait"]),
]
print(*[child.pid for child in children], flush=True)
# an orphan in a session of its own: its parent is gone at once
print(subprocess.run(["sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True).stdout, flush=True)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_tree_is_killed_with_those_that_left_the_session_or_lost_their_parent(
    link: Control, shared: HostProcess, name: str
) -> None:
    pid = link.start(name, sys.executable, "-c", TREE)
    attached = link.attach(name)
    attached.until(lambda: b"ready" in attached.out and len(attached.out.split()) == 6)
    pids = [int(word) for word in attached.out.split() if word != b"ready"]
    assert len(pids) == 5
    assert all(map(is_alive, pids))
    assert link.ask("signal", proc=name, signal="KILL", tree=True) == {"delivered": True}
    wait_until_dead(pid, *pids)
    assert link.event("exited", proc=name)["exit"] == {"code": None, "signal": 9}


def test_without_tree_only_the_process_itself_is_signalled(link: Control, name: str) -> None:
    link.start(name, "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!; wait")
    attached = link.attach(name)
    attached.until(lambda: attached.out.endswith(b"\n"))
    child = int(attached.out)
    link.ask("signal", proc=name, signal="KILL", tree=False)
    link.event("exited", proc=name)
    assert is_alive(child)
    link.ask("forget", proc=name)  # what it left running has no other owner
    wait_until_dead(child)


def test_a_tree_can_be_killed_after_its_leader_has_gone(link: Control, name: str) -> None:
    link.start(name, "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!")
    attached = link.attach(name)
    attached.until_exit()
    child = int(attached.out)
    assert is_alive(child)
    assert link.ask("signal", proc=name, signal="KILL", tree=True) == {"delivered": True}
    wait_until_dead(child)


def test_another_processs_tree_is_left_alone(link: Control, name: str) -> None:
    one = link.start(name, "sleep", "60")
    other = link.start(f"{name}-2", "sleep", "60")
    link.ask("signal", proc=name, signal="KILL", tree=True)
    wait_until_dead(one)
    assert is_alive(other)
    link.ask("signal", proc=f"{name}-2", signal="KILL")


def test_orphans_that_end_are_reaped(link: Control, shared: HostProcess, name: str) -> None:
    link.start(
        name,
        "sh",
        "-c",
        "for i in 1 2 3 4 5; do (setsid sh -c 'echo $$; exec >&-; sleep 0.05' &) ; done",
    )
    attached = link.attach(name)
    attached.until_exit()
    pids = [int(word) for word in attached.out.split()]
    assert len(pids) == 5
    wait_until_dead(*pids)
    link.settle()
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_a_grandchild_that_holds_stdout_does_not_keep_the_exit_back(
    link: Control, name: str
) -> None:
    link.start(name, "sh", "-c", "sleep 60 & echo written; exit 4")
    attached = link.attach(name)
    before = time.monotonic()
    assert attached.until_exit() == {"code": 4, "signal": None}
    assert time.monotonic() - before < 4
    assert attached.out == b"written\n"
    link.ask("forget", proc=name)


def test_a_process_past_its_deadline_is_ended_with_its_tree(link: Control, name: str) -> None:
    pid = link.start(name, "sh", "-c", "sleep 60 & wait", deadline_seconds=0.1)
    link.event("deadline", proc=name)
    assert link.event("exited", proc=name)["exit"] == {"code": None, "signal": signal.SIGTERM}
    wait_until_dead(pid)


def test_a_process_within_its_deadline_is_left_alone(link: Control, name: str) -> None:
    link.start(name, "true", deadline_seconds=30)
    assert link.event("exited", proc=name)["exit"] == {"code": 0, "signal": None}


# What is kept


def test_an_exit_is_kept_over_reconnects_until_it_is_forgotten(
    link: Control, shared: HostProcess, name: str
) -> None:
    pid = link.start(name, "sh", "-c", "echo out; exit 3", session="sess")
    ended = link.event("exited", proc=name)
    assert (ended["exit"], ended["out"], ended["err"]) == ({"code": 3, "signal": None}, 4, 0)
    link.ask("ack", proc=name, out=2, err=0)
    later = shared.control()
    (record,) = [proc for proc in later.hello["procs"] if proc["id"] == name]
    assert record == {
        "id": name,
        "pid": pid,
        "session": "sess",
        "state": "exited",
        "out": [2, 4],
        "err": [0, 0],
        "stdin": 0,
        "exit": {"code": 3, "signal": None},
    }
    assert later.ask("forget", proc=name) == {}
    assert later.ask("forget", proc=name) == {}
    assert name not in [proc["id"] for proc in shared.control().hello["procs"]]


def test_a_running_process_is_not_forgotten_and_an_unknown_one_is_named(
    link: Control, name: str
) -> None:
    link.start(name, "sleep", "60")
    with pytest.raises(Refusal) as refused:
        link.ask("forget", proc=name)
    assert refused.value.code == "running"
    for verb in ("signal", "ack"):
        with pytest.raises(Refusal) as refused:
            link.ask(verb, proc="nobody", signal=9)
        assert refused.value.code == "unknown_proc"
    link.ask("signal", proc=name, signal="KILL")


def test_an_acknowledgement_beyond_the_end_is_refused_and_an_old_one_harmless(
    link: Control, name: str
) -> None:
    link.start(name, "printf", "12345")
    link.event("exited", proc=name)
    with pytest.raises(Refusal) as refused:
        link.ask("ack", proc=name, out=6)
    assert refused.value.code == "invalid"
    link.ask("ack", proc=name, out=4)
    link.ask("ack", proc=name, out=1)
    attached = link.attach(name, 4)
    attached.until_exit()
    assert (attached.out, attached.gaps) == (b"5", [])


def test_a_hundred_starts_leave_no_descriptor_and_no_zombie(
    link: Control, shared: HostProcess, name: str
) -> None:
    fds = link.fds()
    for i in range(100):
        link.start(f"{name}-{i}", "true")
    for i in range(100):
        link.event("exited", proc=f"{name}-{i}")
        link.ask("forget", proc=f"{name}-{i}")
    assert link.fds() <= fds
    with open(f"/proc/{shared.pid}/task/{shared.pid}/children") as children:
        assert children.read().split() == [
            pid for pid in children.read().split() if is_alive(int(pid))
        ]


def test_there_is_a_limit_to_processes(name: str) -> None:
    code = "import oubliette.incontainer.guest.process.table as t; t.PROCESSES = 2\nfrom oubliette.incontainer.__main__ import main; raise SystemExit(main())"
    with HostProcess(target=["-c", code]) as host:
        link = host.control()
        link.start("a", "true")
        link.start("b", "true")
        with pytest.raises(Refusal) as refused:
            link.start("c", "true")
        assert refused.value.code == "limit"
        link.event("exited", proc="a")
        link.ask("forget", proc="a")
        link.start("c", "true")
