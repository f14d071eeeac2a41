"""Listening sockets: the one place that opens them, and that tells which user's program holds a port.

Knows neither HTTP nor agents.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import sys
from pathlib import Path

from collectors.files import user_name

BACKLOG = 128
"""Connections waiting to be accepted; after a restart more come than socketserver's 5."""

_PROC_NET = Path("/proc/net")
_LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""
_OWN_PROGRAM = "another program of yours"


class CannotListen(RuntimeError):
    """A socket cannot listen at the address; the message says why."""


class PortTaken(CannotListen):
    """Another program listens at the port already. is_ours: whether it belongs to the user of this process."""

    def __init__(self, text: str, *, is_ours: bool) -> None:
        super().__init__(text)
        self.is_ours = is_ours


def listen(host: str, port: int, *, backlog: int = BACKLOG) -> socket.socket:
    """Return a socket that listens at this address; at a free port, where it is 0.

    Raises:
        PortTaken: another program listens there.
        CannotListen: the host is no address of this machine, or the port may not be used.
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
    except UnicodeError:  # A name with an empty part, a part of over 63 letters, or letters that no name may have.
        raise CannotListen(f"host {host!r} is no name of a machine and no address") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            holder = holder_of(host, port)
            raise PortTaken(f"{where} is taken by {holder}", is_ours=holder == _OWN_PROGRAM) from None
        raise CannotListen(f"{where} cannot be listened at: {error.strerror or error}") from None
    except OverflowError:
        raise CannotListen(f"port {port} is none; it may be 0 to 65535") from None


def holder_of(host: str, port: int) -> str:
    """Return whose program listens at the address, as `another program of user ana (uid 1003)`."""
    uids = uids_at(host, port)
    if not uids:
        return "another program"
    foreign = sorted(uids - {os.getuid()})
    return f"another program of {' and '.join(map(user_name, foreign))}" if foreign else _OWN_PROGRAM


def is_held_by_us(host: str, port: int) -> bool:
    """Return whether programs of this process's user listen at the address, and nobody else's."""
    return uids_at(host, port) == {os.getuid()}


def uids_at(host: str, port: int) -> set[int]:
    """Return the users whose programs listen at the address or at all addresses; none where /proc does not show it.

    Source: proc(5), /proc/net/tcp: local address and port in hexadecimal, state, user id.
    """
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    given = {ipaddress.ip_address(address[0]) for *_, address in resolved}
    uids = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):  # No IPv6, or no /proc of Linux.
            for line in (_PROC_NET / name).read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, uid, *_ = line.split()
                address, _, local_port = local.partition(":")
                if state == _LISTEN and int(local_port, 16) == port and _is_reached(_address(address), given):
                    uids.add(int(uid))
    return uids


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _address(text: str) -> _Address:
    """Return the address of /proc/net: words of 32 bits in this machine's order, so that 0100007F is 127.0.0.1."""
    words = [int(text[place : place + 8], 16).to_bytes(4, sys.byteorder) for place in range(0, len(text), 8)]
    found = ipaddress.ip_address(b"".join(words))
    return getattr(found, "ipv4_mapped", None) or found


def _is_reached(listening: _Address, given: set[_Address]) -> bool:
    return listening.is_unspecified or listening in given or any(address.is_unspecified for address in given)


def network_of(host: str) -> str:
    """Return what counts as one address: all of this machine's loopback, a /64 of IPv6, or one IPv4 address."""
    address = ipaddress.ip_address(host)
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback:
        return "this machine"
    if address.version == 6:
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)
