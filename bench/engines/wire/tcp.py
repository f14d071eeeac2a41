"""TCP connections of agents and their runner: agents connect, the runner listens and admits only holders of the key."""

from __future__ import annotations

import argparse
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from bench.engines.wire.frames import Refused, SignedWire, SocketStream, StreamEnded, meet
from bench.errors import InfrastructureFailed, say
from collectors import sockets

CONNECT_S = 30.0
"""How long an agent tries to reach its runner, which may still be starting."""
AGAIN_S = 0.5
MEET_S = 10.0
"""How long a connection may take to prove that it has the key."""
MOST_UNKNOWN = 8
"""How many connections may be unproved at once, in addition to one for each expected agent."""
MOST_LOGGED = 20
"""How many refusals are logged, one line each; the others are only counted."""


def address_of(text: str, least_port: int = 1) -> tuple[str, int]:
    """Return host and port of HOST:PORT; an IPv6 address is in brackets.

    least_port: 0 for an address to listen at, where port 0 means any free port.

    Raises:
        argparse.ArgumentTypeError: the text is not HOST:PORT.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not least_port <= int(port) < 65536:
        raise argparse.ArgumentTypeError(f'"{text}" is not HOST:PORT')
    return host.removeprefix("[").removesuffix("]"), int(port)


class Unreached(OSError):
    """The runner has not answered in time: it has not started yet, or it has ended."""


def connect(host: str, port: int, *, within_s: float = CONNECT_S) -> SocketStream:
    """Connect to the runner; try again while it does not answer.

    Raises:
        Unreached: the runner did not answer in time.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            connected = socket.create_connection((host, port), timeout=max(0.1, deadline_s - time.monotonic()))
        except OSError as error:
            if time.monotonic() + AGAIN_S >= deadline_s:
                raise Unreached(f"the runner at {host}:{port} cannot be reached: {error.strerror or error}") from None
            time.sleep(AGAIN_S)
        else:
            connected.settimeout(None)
            return SocketStream(connected)


def join_runner(host: str, port: int, key: bytes, *, node: int, within_s: float = CONNECT_S) -> SignedWire:
    """Connect to the runner and meet it; try again if it hangs up first, for example because too many connect at once.

    Raises:
        Unreached: the runner did not answer in time.
        Refused: it has another key or version.
        StreamEnded, OSError: it hung up each time.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        stream = connect(host, port, within_s=max(0.0, deadline_s - time.monotonic()))
        try:
            return meet(stream, key, "agent", node=node)
        except (StreamEnded, OSError):
            stream.close()
            if time.monotonic() + AGAIN_S >= deadline_s:
                raise
            time.sleep(AGAIN_S)
        except Refused:
            stream.close()
            raise


def listen(host: str, port: int, *, expected: int) -> socket.socket:
    """Return a socket that listens for this many agents; port 0 means any free port.

    Raises:
        InfrastructureFailed: this machine does not have the address, or the port is taken.
    """
    try:
        return sockets.listen(host, port, backlog=expected + MOST_UNKNOWN)
    except sockets.CannotListen as error:
        raise InfrastructureFailed(f"cannot listen for agents: {error}") from None


class AgentListener:
    """Listens for agents until it is closed; refuses connections that do not prove in time that they have the key.

    If too many connections are unproved, the oldest is refused: an agent proves itself at once, and tries again.
    host: the address to listen at. expected: how many agents will connect. log: called with one line for each refusal,
    from any thread. lent: a socket that already listens, and still does after this is closed: agents that connect
    meanwhile wait for the next listener. protocol: see `meet`.
    """

    def __init__(
        self,
        host: str,
        key: bytes,
        *,
        expected: int = 1,
        meet_s: float = MEET_S,
        log: Callable[[str], None] = say,
        lent: socket.socket | None = None,
        protocol: int | None = None,
    ) -> None:
        """Listen at a free port, or with the lent socket.

        Raises:
            InfrastructureFailed: this machine does not have the address.
        """
        self._is_lent = lent is not None
        if lent is None:
            self._socket = listen(host, 0, expected=expected)
        else:
            self._socket = lent.dup()
            self._socket.settimeout(AGAIN_S)  # `close` must not shut it down, which would also end the lent one.
        self._key, self._meet_s, self._log, self._protocol = key, meet_s, log, protocol
        self._most_unknown = expected + MOST_UNKNOWN
        self._unknown: dict[str, SocketStream] = {}  # By address, oldest first.
        self._refusals = 0
        self._met: queue.SimpleQueue[SignedWire] = queue.SimpleQueue()
        self._nodes: set[int] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen, name="listening for agents", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def accept(self, within_s: float) -> SignedWire | None:
        """Return the wire of the next agent, whose hello names its node; None if no agent connects in time."""
        with suppress(queue.Empty):
            return self._met.get(timeout=within_s)
        return None

    def close(self) -> None:
        """Stop listening, and end the connections of agents that were not accepted."""
        self._is_closed = True
        if not self._is_lent:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # Wakes the thread.
        self._thread.join()
        self._socket.close()
        if self._refusals > MOST_LOGGED:
            self._log(f"refused {self._refusals - MOST_LOGGED} more connections")
        with suppress(queue.Empty):
            while True:
                self._met.get_nowait().stream.close()

    def _listen(self) -> None:
        while not self._is_closed:
            try:
                connected, address = self._socket.accept()
            except TimeoutError:  # Of a lent socket.
                continue
            except OSError:
                if self._is_closed:
                    return
                time.sleep(AGAIN_S)  # For example, too many files are open. Agents also try again.
                continue
            where = f"{address[0]}:{address[1]}"
            stream = SocketStream(connected)
            with self._lock:
                if len(self._unknown) >= self._most_unknown:
                    oldest = next(iter(self._unknown))
                    self._unknown.pop(oldest).abort()
                    self._refuse(oldest, "too many connections have not yet proved that they have the key")
                self._unknown[where] = stream
            threading.Thread(target=self._meet, args=(stream, where), name=f"meeting {where}", daemon=True).start()

    def _send_away(self, stream: SocketStream, where: str) -> None:
        with self._lock:
            if self._unknown.get(where) is stream:
                stream.abort()

    def _refuse(self, where: str, why: object) -> None:
        self._refusals += 1
        if self._refusals <= MOST_LOGGED:
            self._log(f"refused the connection from {where}: {why}")

    def _meet(self, stream: SocketStream, where: str) -> None:
        limit = threading.Timer(self._meet_s, self._send_away, (stream, where))  # However slowly its bytes come.
        limit.start()
        try:
            wire = meet(stream, self._key, "runner", protocol=self._protocol)
            self._take(wire, where)
        except (Refused, StreamEnded, OSError) as error:
            with self._lock:
                if self._unknown.get(where) is stream:  # Otherwise it was refused already.
                    self._refuse(where, error)
            stream.close()
        finally:
            limit.cancel()
            with self._lock:
                if self._unknown.get(where) is stream:
                    del self._unknown[where]

    def _take(self, wire: SignedWire, where: str) -> None:
        assert wire.peer is not None, "the sides have met"
        with self._lock:
            if self._is_closed or wire.peer.node in self._nodes:
                raise Refused(f"node {wire.peer.node} already has an agent")
            if self._unknown.pop(where, None) is None:
                raise Refused("it took too long")
            self._nodes.add(wire.peer.node)
        self._met.put(wire)
