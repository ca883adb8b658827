"""Actors of other nodes: the transport port, and what makes a ref reach beyond its System.

`connect(system, transport)` makes `system.ref("NODE!name")` the address of an actor elsewhere. It
knows no carrier: the transport is made by the program that runs the cluster.
"""

from oubliette.kit.remote.addresses import checked_node, split_address
from oubliette.kit.remote.interconnect import Interconnect, connect
from oubliette.kit.remote.kinds import NotSendable, RemoteFailure
from oubliette.kit.remote.remote_ref import RemoteRef
from oubliette.kit.remote.transport import Gone, PeerGone, Receive, Transport

__all__ = (
    "Gone",
    "Interconnect",
    "NotSendable",
    "PeerGone",
    "Receive",
    "RemoteFailure",
    "RemoteRef",
    "Transport",
    "checked_node",
    "connect",
    "split_address",
)
