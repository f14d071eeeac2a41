"""Listening sockets: opens them, and finds the user behind a port or a connection.

Knows neither HTTP nor agents.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

from collectors.files import user_name

BACKLOG = 128
"""Maximum number of connections waiting to be accepted; socketserver's 5 are too few after a restart."""

_PROC_NET = Path("/proc/net")
_LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""
# From linux/netlink.h and linux/sock_diag.h.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_ANY_STATE = 0xFFFFFFFF
_OWN_PROGRAM = "another program of yours"


class CannotListen(RuntimeError):
    """A socket cannot listen at the address; the message says why."""


class PortTaken(CannotListen):
    """Another program already listens on the port. is_ours: whether it belongs to the user of this process."""

    def __init__(self, text: str, *, is_ours: bool) -> None:
        super().__init__(text)
        self.is_ours = is_ours


def listen(host: str, port: int, *, backlog: int = BACKLOG) -> socket.socket:
    """Return a socket that listens at this address; port 0 takes a free port.

    Raises:
        PortTaken: another program listens there.
        CannotListen: the host is not an address of this machine, or this user may not use the port.
    """
    where = f"port {port} of {host}" if port else host
    try:
        (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(socket.socket(family))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address[:2])
            listener.listen(backlog)
            undo.pop_all()
        return listener
    except UnicodeError:  # The name has an empty part, a part of over 63 letters, or forbidden letters.
        raise CannotListen(f"host {host!r} is neither a host name nor an address") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            holder = holder_of(host, port)
            raise PortTaken(f"{where} is taken by {holder}", is_ours=holder == _OWN_PROGRAM) from None
        raise CannotListen(f"cannot listen at {where}: {error.strerror or error}") from None
    except OverflowError:
        raise CannotListen(f"port {port} does not exist; use 0 to 65535") from None


def holder_of(host: str, port: int) -> str:
    """Return whose program listens at the address, for example `another program of user ana (uid 1003)`."""
    uids = uids_at(host, port)
    if not uids:
        return "another program"
    foreign = sorted(uids - {os.getuid()})
    return f"another program of {' and '.join(map(user_name, foreign))}" if foreign else _OWN_PROGRAM


def is_held_by_us(host: str, port: int) -> bool:
    """Return whether this process's user, and nobody else, has programs that listen at the address."""
    return uids_at(host, port) == {os.getuid()}


def uids_at(host: str, port: int) -> set[int]:
    """Return the users whose programs listen at the address or at all addresses; empty if /proc does not show it.

    Source: proc(5), /proc/net/tcp: hexadecimal local address and port, state, user id.
    """
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    addresses = {ipaddress.ip_address(address[0]) for *_, address in resolved}
    uids = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):  # The machine has no IPv6, or is not Linux.
            for line in (_PROC_NET / name).read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, uid, *_ = line.split()
                address, _, local_port = local.partition(":")
                if state == _LISTEN and int(local_port, 16) == port and _is_reached(_address(address), addresses):
                    uids.add(int(uid))
    return uids


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _address(text: str) -> _Address:
    """Parse an address of /proc/net: 32-bit words in this machine's byte order, so 0100007F is 127.0.0.1."""
    words = [int(text[place : place + 8], 16).to_bytes(4, sys.byteorder) for place in range(0, len(text), 8)]
    return _plain(b"".join(words))


def _is_reached(listening: _Address, addresses: set[_Address]) -> bool:
    return listening.is_unspecified or listening in addresses or any(address.is_unspecified for address in addresses)


def network_of(client: tuple[Any, ...], own: tuple[Any, ...]) -> str:
    """Return the key of a client: a user of this machine, a /64 network of IPv6, or an IPv4 address.

    All clients on this machine whose user the kernel does not show share a key.

    client, own: address and port of both ends of the connection, as `getpeername` and `getsockname` give them.
    """
    address, own_address = _plain(client[0]), _plain(own[0])
    if address.is_loopback or address == own_address:
        uid = _uid_of_client(address, client[1], own_address, own[1])
        # No user name: looking it up could wait for a slow directory server.
        return "this machine" if uid is None else f"uid {uid} on this machine"
    if address.version == 6:
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)


def _uid_of_client(address: _Address, port: int, own: _Address, own_port: int) -> int | None:
    """Return the user who owns the other end of a connection within this machine; None if unknown.

    The kernel looks up this socket alone. /proc/net/tcp lists all sockets, which takes 40 ms if there are ten thousand
    closed ones.
    Source: sock_diag(7), struct inet_diag_req_v2 and inet_diag_msg.
    """
    if address.version != own.version or not hasattr(socket, "AF_NETLINK"):
        return None
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    # The socket: ports, 16-byte addresses, any interface, no cookie.
    ends = struct.pack("!HH16s16sI8s", port, own_port, address.packed, own.packed, 0, b"\xff" * 8)
    request = struct.pack("=BBxxI", family, socket.IPPROTO_TCP, _ANY_STATE) + ends
    # The header: length, kind, flags, number, sender.
    header = struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.sendto(header + request, (0, 0))
            reply = kernel.recv(1 << 12, socket.MSG_DONTWAIT)
    except OSError:
        return None
    _, kind, *_ = struct.unpack_from("=IHHII", reply)
    if kind != _SOCK_DIAG_BY_FAMILY:
        return None
    # After the header: family, state, timer, retransmissions; ends, expiry, two queues; then user and inode.
    state, uid, inode = struct.unpack_from("=xBxx48x12xII", reply, 16)
    # A socket that its program has closed has no inode, and the kernel reports root as its user.
    return None if state == int(_LISTEN, 16) or inode == 0 else uid


def _plain(host: str | bytes) -> _Address:
    """Return the address; an IPv4 address that is mapped into IPv6 becomes plain IPv4."""
    address = ipaddress.ip_address(host)
    return getattr(address, "ipv4_mapped", None) or address
