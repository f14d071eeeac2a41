"""Payload bytes of this process's TCP connections, counted by the kernel, inside its node and across nodes."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec

OPEN_FILES = Path("/proc/self/fd")
INFO_BYTES = 136
ACKED_AT, RECEIVED_AT = 120, 128
"""Where struct tcp_info has tcpi_bytes_acked and tcpi_bytes_received, since Linux 4.1."""


class TcpBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Payload without headers. Retransmitted bytes count once."""

    sent_inside: int
    sent_across: int
    received_inside: int
    received_across: int

    def since(self, before: TcpBytes) -> TcpBytes:
        """What has been added."""
        return TcpBytes(**{name: getattr(self, name) - getattr(before, name) for name in self.__struct_fields__})


def count_tcp_bytes(*, except_port: int) -> TcpBytes:
    """All connections so far but those to and from the port. Both ends of one inside a node have the same address."""
    counted = dict.fromkeys(TcpBytes.__struct_fields__, 0)
    for connection in _connections():
        with closing(connection):
            (own, own_port), (peer, peer_port) = connection.getsockname()[:2], connection.getpeername()[:2]
            if except_port in (own_port, peer_port):
                continue
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
            where = "inside" if own == peer else "across"
            counted[f"sent_{where}"] += struct.unpack_from("Q", info, ACKED_AT)[0]
            counted[f"received_{where}"] += struct.unpack_from("Q", info, RECEIVED_AT)[0]
    return TcpBytes(**counted)


def _connections() -> Iterator[socket.socket]:
    for path in OPEN_FILES.iterdir():
        with suppress(OSError):  # Closed meanwhile, no socket, or one without a peer.
            if not str(path.readlink()).startswith("socket:"):
                continue
            connection = socket.socket(fileno=os.dup(int(path.name)))
            try:
                is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
                if is_tcp and connection.type == socket.SOCK_STREAM and connection.getpeername():
                    yield connection
                    continue
            except OSError:
                connection.close()
                raise
            connection.close()
