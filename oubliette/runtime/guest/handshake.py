"""Handshake of a control link: proof of the container's key on both sides, then a version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.errors import InvalidParameter, ProtocolViolation
from oubliette.incontainer import wire
from oubliette.json_values import parse_object
from oubliette.runtime.guest import dial as dialing
from oubliette.runtime.guest.errors import GuestImpostor, GuestRefused, VersionMismatch
from oubliette.runtime.guest.messages import Hello

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

NO_COMMON_VERSION: Final = "no common version"  # sent by a guest that has none of our versions


async def handshake(
    reader: StreamReader, writer: StreamWriter, key: bytes, nonce: str, epoch: int
) -> Hello:
    """Prove to each other that both sides hold `key`; return the guest's `hello`.

    Args:
        reader: of the connection, whose header with `nonce` was sent.
        writer: of the same connection; the caller closes it after an error.
        key: the container's 32 bytes.
        nonce: what the guest's proof has to contain.
        epoch: epoch of this server; a guest closes links with an older one.

    Raises:
        GuestImpostor: the peer does not hold the key; nothing was disclosed to it.
        GuestRefused: the guest refused the link (`stale epoch`, bad proof).
        LinkClosed: the connection ended first.
        VersionMismatch: the guest and this server have no common version.
        ProtocolViolation: the peer does not follow the protocol.
    """
    try:
        offer = parse_object(await dialing.read_line(reader))
        challenge = wire.check_hex(str(offer.get("challenge")), wire.NONCE_HEX, "challenge")
    except (wire.WireError, InvalidParameter) as error:
        raise ProtocolViolation(f"the relay does not speak our protocol: {error}") from error
    if not wire.same(offer.get("proof"), wire.host_proof(key, nonce, challenge)):
        raise GuestImpostor("what listens at the relay socket does not hold the container's key")
    proof = {
        "proof": wire.server_proof(key, challenge, nonce),
        "epoch": epoch,
        "versions": [wire.PROTOCOL_MIN, wire.PROTOCOL_MAX],
    }
    writer.write(wire.encode_json(proof))
    ours = f"this server speaks {wire.PROTOCOL_MIN} to {wire.PROTOCOL_MAX}"
    try:
        hello = msgspec.convert(parse_object(await dialing.read_line(reader)), Hello)
    except GuestRefused as error:
        if error.reason == NO_COMMON_VERSION:
            raise VersionMismatch(f"it speaks another version of the protocol, {ours}") from error
        raise
    except (msgspec.MsgspecError, InvalidParameter) as error:
        raise ProtocolViolation(f"the guest's hello cannot be read: {error}") from error
    low, high = hello.versions
    if high < wire.PROTOCOL_MIN or low > wire.PROTOCOL_MAX:
        raise VersionMismatch(f"it speaks versions {low} to {high} of the protocol, {ours}")
    return hello
