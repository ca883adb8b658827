"""Filter of system calls for a sandbox: a program for the kernel, given to `bwrap --seccomp`.

It refuses what reaches state of the machine that no namespace covers, and parts of the kernel that
coding agents do not need. Everything else is allowed: agents run compilers, browsers, debuggers.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import Final

import msgspec


class Machine(msgspec.Struct, frozen=True):
    """Numbers of an architecture, as in the kernel's headers."""

    audit: int
    """Its `AUDIT_ARCH_*`."""
    refused: dict[str, int]
    socket: int
    ioctl: int
    x32: bool = False
    """It has a second table of system calls, whose numbers have bit 30."""


MACHINES: Final = {
    "x86_64": Machine(
        audit=0xC000003E,
        socket=41,
        ioctl=16,
        x32=True,
        refused={
            "syslog": 103,
            "vhangup": 153,
            "acct": 163,
            "swapon": 167,
            "swapoff": 168,
            "reboot": 169,
            "iopl": 172,
            "ioperm": 173,
            "init_module": 175,
            "delete_module": 176,
            "quotactl": 179,
            "lookup_dcookie": 212,
            "kexec_load": 246,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "perf_event_open": 298,
            "open_by_handle_at": 304,
            "finit_module": 313,
            "kexec_file_load": 320,
            "bpf": 321,
            "userfaultfd": 323,
            "io_uring_setup": 425,
            "io_uring_enter": 426,
            "io_uring_register": 427,
        },
    ),
    "aarch64": Machine(
        audit=0xC00000B7,
        socket=198,
        ioctl=29,
        refused={
            "lookup_dcookie": 18,
            "vhangup": 58,
            "quotactl": 60,
            "acct": 89,
            "kexec_load": 104,
            "init_module": 105,
            "delete_module": 106,
            "syslog": 116,
            "reboot": 142,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "swapon": 224,
            "swapoff": 225,
            "perf_event_open": 241,
            "open_by_handle_at": 265,
            "finit_module": 273,
            "bpf": 280,
            "userfaultfd": 282,
            "kexec_file_load": 294,
            "io_uring_setup": 425,
            "io_uring_enter": 426,
            "io_uring_register": 427,
        },
    ),
}

TERMINAL_INPUT: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX type into a terminal, for the shell that started us."""
FAMILIES: Final = (38, 40)
"""AF_ALG, and AF_VSOCK: the line to a hypervisor, which no network namespace covers."""

_LOAD, _EQUAL, _ABOVE, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000
_NUMBER, _AUDIT, _FIRST, _SECOND = 0, 4, 16, 24  # offsets in `struct seccomp_data`
_X32: Final = 1 << 30


def program() -> bytes | None:
    """Return the filter for this machine; None: its numbers are not known."""
    machine = MACHINES.get(platform.machine())
    return None if machine is None or struct.calcsize("P") != 8 else compiled(machine)


def compiled(machine: Machine) -> bytes:
    """The filter as the kernel takes it."""
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _AUDIT),
        # Calls of another architecture, as of 32-bit programs, have other numbers.
        (_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _REFUSE | errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine.x32:
        code += [(_ABOVE, 0, 1, _X32), (_RETURN, 0, 0, _REFUSE | errno.ENOSYS)]
    for number in machine.refused.values():
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE | errno.EPERM)]
    code += _by_argument(machine.ioctl, _SECOND, TERMINAL_INPUT, errno.EPERM)
    code += _by_argument(machine.socket, _FIRST, FAMILIES, errno.EAFNOSUPPORT)
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *each) for each in code)


def _by_argument(
    number: int, offset: int, values: tuple[int, ...], error: int
) -> list[tuple[int, int, int, int]]:
    """Refuse a call with one of these values; the kernel looks at their lower 32 bits alone."""
    tests: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, offset)]
    for value in values:
        tests += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _REFUSE | error)]
    return [(_EQUAL, 0, len(tests) + 1, number), *tests, (_LOAD, 0, 0, _NUMBER)]
