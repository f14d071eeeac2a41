"""The wire between a runner and an agent: signed frames over a stream of bytes, with a key made for the suite.

A frame is a header of 44 bytes (length of the body, sequence number, HMAC-SHA256) and a body of JSON. Frames begin with
their length, instead of ending with a newline, so that a frame that is too long is refused before it is read into
memory. The HMAC covers the direction, the nonces of both sides, the sequence number and the body: a frame from another
connection, from the other direction or from an earlier moment is refused. Nothing is ever pickled.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import select
import socket
import stat
import struct
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import IO, Annotated, Literal, Protocol

import msgspec

PROTOCOL = 6
"""Raise it with each change of frames or messages: sides with different protocols refuse each other."""
SPOKEN = frozenset({4, 5, PROTOCOL})
"""Protocols of other source trees' agents that can run trials for this runner. After a raise, keep an older one as long
as its agents understand our orders and we understand their answers."""
WireSide = Literal["runner", "agent"]
KEY_BYTES = NONCE_BYTES = 32
HELLO_BYTES = 4096
"""Size limit of a body until the other side has proved that it has the key."""
MOST_BYTES: dict[WireSide, int] = {"runner": 1 << 20, "agent": 16 << 20}
"""Size limit of a body, by sender: the runner sends orders, an agent sends pieces of files and its machine."""
REASON_CHARACTERS = 300
"""Longest reason of a refusal. What was refused may be longer, and is cut."""
MET = b'{"type":"heartbeat"}'
"""Body of the agent's first frame after both hellos: the first frame that cannot come from an earlier connection."""

_HEADER = struct.Struct(">IQ32s")
_NO_NONCE = bytes(NONCE_BYTES)
_PIECE_BYTES = 1 << 16
_OTHER: dict[WireSide, WireSide] = {"runner": "agent", "agent": "runner"}


class Refused(RuntimeError):
    """The other side sent something unacceptable; the connection is useless now. The message is one short line."""

    def __init__(self, reason: str) -> None:
        super().__init__(" ".join(reason.split())[:REASON_CHARACTERS])


class StreamEnded(RuntimeError):
    """The other side closed its end."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Each side's first message. program: the program's version. node: the number of the agent's node."""

    protocol: int
    program: Annotated[str, msgspec.Meta(max_length=100)]
    nonce: bytes
    node: Annotated[int, msgspec.Meta(ge=0)] = 0


# Streams.


class Stream(Protocol):
    """Bytes to and from the other side: pipes, the streams of a Slurm step or a Ray actor, or a TCP connection.

    reading_fd, writing_fd: for selectors.
    read: returns what has arrived, at most this many bytes; no bytes at the end of the stream. has_unread: whether read
    would return at once.
    write: returns when all is written. write_some: writes what fits without waiting, and returns the number of bytes.
    hang_up: closes the sending end. abort: also interrupts a waiting call, if it can. close: closes both ends; call it
    when nobody reads or writes any more.
    """

    @property
    def reading_fd(self) -> int: ...
    @property
    def writing_fd(self) -> int: ...
    def read(self, most: int) -> bytes: ...
    def has_unread(self) -> bool: ...
    def write(self, data: bytes) -> None: ...
    def write_some(self, data: memoryview) -> int: ...
    def hang_up(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


def _is_at_once(fd: int, event: int) -> bool:
    """Whether the system call that belongs to this event of `poll` would return at once."""
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(0))


class PipeStream:
    """A `Stream` of two pipes, one for each direction. Both files must be unbuffered."""

    def __init__(self, reading: IO[bytes], writing: IO[bytes]) -> None:
        self._reading, self._writing = reading, writing

    @property
    def reading_fd(self) -> int:
        return self._reading.fileno()

    @property
    def writing_fd(self) -> int:
        return self._writing.fileno()

    def read(self, most: int) -> bytes:
        return self._reading.read(most)

    def has_unread(self) -> bool:
        return _is_at_once(self.reading_fd, select.POLLIN)

    def write(self, data: bytes) -> None:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[self._writing.write(remaining) :]

    def write_some(self, data: memoryview) -> int:
        """See `Stream`. A pipe that has room at all takes PIPE_BUF bytes without waiting (pipe(7))."""
        return self._writing.write(data[: select.PIPE_BUF]) if _is_at_once(self.writing_fd, select.POLLOUT) else 0

    def hang_up(self) -> None:
        with suppress(BrokenPipeError):
            self._writing.close()

    def abort(self) -> None:
        """Do nothing: a waiting call ends with the process at the other end."""

    def close(self) -> None:
        self.hang_up()
        self._reading.close()


class SocketStream:
    """A `Stream` over a connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected

    @property
    def address(self) -> str:
        address: str = self._socket.getsockname()[0]
        return address

    @property
    def reading_fd(self) -> int:
        return self._socket.fileno()

    @property
    def writing_fd(self) -> int:
        return self._socket.fileno()

    def read(self, most: int) -> bytes:
        return self._socket.recv(most)

    def has_unread(self) -> bool:
        return _is_at_once(self.reading_fd, select.POLLIN)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def write_some(self, data: memoryview) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def hang_up(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


# Keys: each suite has its own; agents get it in a file that only its owner can read, or as their input's first line.


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def key_line(key: bytes) -> bytes:
    """Return the key as the line of a key file, or as the first line of an agent's input."""
    return key.hex().encode() + b"\n"


def write_key(path: Path, key: bytes) -> None:
    """Write the key to a new file that only its owner can read.

    Raises:
        OSError: the file exists, or cannot be written.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(key_line(key))


def read_key(path: Path) -> bytes:
    """Return the key from a file.

    Raises:
        Refused: others can read the file, it belongs to another user, or it has no key. The message never has the key.
        OSError: it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # A named pipe must not block.
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in (os.geteuid(), 0):
            raise Refused(f"the key file {path} is not a file of this user")
        if about.st_mode & 0o077:
            raise Refused(
                f"others can read or write the key file {path} (mode {about.st_mode & 0o777:o}); run `chmod 600` on it"
            )
        return _key_of(file.read(4 * KEY_BYTES), f"the key file {path}")


def receive_key(stream: Stream) -> bytes:
    """Return the key from the first line of a stream, and read no byte after this line.

    Raises:
        Refused: the line is not a key.
        StreamEnded: there was no line.
    """
    line = b""
    while not line.endswith(b"\n") and len(line) < 4 * KEY_BYTES:
        byte = stream.read(1)
        if not byte:
            raise StreamEnded("the runner hung up before it sent a key")
        line += byte
    return _key_of(line, "the first line of standard input")


def _key_of(line: bytes, where: str) -> bytes:
    with suppress(ValueError):
        key = bytes.fromhex(line.decode("ascii"))  # Skips the newline.
        if len(key) == KEY_BYTES:
            return key
    raise Refused(f"{where} holds no key, which is a line of {2 * KEY_BYTES} hexadecimal digits")


# Frames.


class SignedWire:
    """One end of a connection whose two sides have proved to each other that they have the key; see `meet`.

    One thread may send while another receives.
    peer: the other side's hello.
    """

    def __init__(self, stream: Stream, key: bytes, side: WireSide) -> None:
        self.stream = stream
        self.side: WireSide = side
        self.peer: Hello | None = None
        self._key = key
        self._nonces: dict[WireSide, bytes] = {"agent": _NO_NONCE, "runner": _NO_NONCE}
        self._sent = self._received = 0
        self._unread = bytearray()  # Read from the stream, but not yet taken as messages.

    def send(self, body: bytes) -> None:
        """Send a message in JSON.

        Raises:
            OSError, ValueError: the other side is gone, or this one hung up.
        """
        self.stream.write(self.frame(body))

    def frame(self, body: bytes) -> bytes:
        """Return a message as the next frame, to be sent before any other."""
        assert len(body) <= MOST_BYTES[self.side], f"a message has {len(body)} bytes"
        header = _HEADER.pack(len(body), self._sent, self._signature(self.side, self._sent, body))
        self._sent += 1
        return header + body

    def receive(self, most_bytes: int | None = None) -> bytes:
        """Return the next message, which the other side has signed, and read no byte after it.

        Raises:
            Refused: see `next_body`.
            StreamEnded: the other side hung up.
            OSError: the connection is lost.
        """
        while (body := self.next_body(most_bytes)) is None:
            missing = self._next_bytes(most_bytes) - len(self._unread)
            self.feed(self.stream.read(min(missing, _PIECE_BYTES)))
        return body

    def feed(self, data: bytes) -> None:
        """Add what was read from the stream.

        Raises:
            StreamEnded: nothing was read, so the other side hung up.
        """
        if not data:
            what = "'s last frame was cut off" if self._unread else " hung up"
            raise StreamEnded(f"the {_OTHER[self.side]}{what}")
        self._unread += data  # Memory grows with what has arrived, not with what was announced.

    def next_body(self, most_bytes: int | None = None) -> bytes | None:
        """Return the next message from what was fed; None while it is incomplete.

        Raises:
            Refused: the frame is too long, has a wrong signature, or comes out of order.
        """
        size = self._next_bytes(most_bytes)
        if len(self._unread) < size:
            return None
        _, sequence, signature = _HEADER.unpack_from(self._unread)
        body = bytes(self._unread[_HEADER.size : size])
        del self._unread[:size]
        if not hmac.compare_digest(signature, self._signature(_OTHER[self.side], sequence, body)):
            raise Refused("a frame is not signed with the key for this connection")
        if sequence != self._received:
            kind = "was received before (a replay)" if sequence < self._received else "comes out of order"
            raise Refused(f"frame {sequence} {kind}; frame {self._received} is due")
        self._received += 1
        return body

    def _next_bytes(self, most_bytes: int | None) -> int:
        """Return the size of the next frame, or of its header while the frame's size is unknown."""
        if len(self._unread) < _HEADER.size:
            return _HEADER.size
        limit = MOST_BYTES[_OTHER[self.side]] if most_bytes is None else most_bytes
        length: int = _HEADER.unpack_from(self._unread)[0]
        if length > limit:
            raise Refused(f"a frame of {length} bytes is longer than {limit}, or not from this program")
        return _HEADER.size + length

    def bind(self, side: WireSide, nonce: bytes) -> None:
        """Use this nonce of a side to sign and check frames from now on."""
        self._nonces[side] = nonce

    def _signature(self, sender: WireSide, sequence: int, body: bytes) -> bytes:
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        # All parts but the last have a fixed length, so that two different frames never give the same bytes here.
        mac.update(b"observatory frame\0" + sender[:1].encode() + self._nonces["agent"] + self._nonces["runner"])
        mac.update(sequence.to_bytes(8, "big"))
        mac.update(body)
        return mac.digest()


def program_version() -> str:
    try:
        return metadata.version("parallel-observatory")
    except metadata.PackageNotFoundError:
        return "source tree"


def meet(
    stream: Stream,
    key: bytes,
    side: WireSide,
    *,
    node: int = 0,
    program: str | None = None,
    protocol: int | None = None,
) -> SignedWire:
    """Exchange hellos over a new stream; return the wire when the other side has proved that it has the key.

    The agent speaks first, whoever opened the stream. Its hello could be a replay, so the runner trusts it only after a
    frame that is signed with both sides' nonces.
    protocol: the protocol in `SPOKEN` of another source tree's agent; None: this program's own.

    Raises:
        Refused: the other side has no key, another key, or another version.
        StreamEnded, OSError: the connection is lost.
    """
    wire = SignedWire(stream, key, side)
    hello = Hello(
        protocol=protocol or PROTOCOL,
        program=program or program_version(),
        nonce=secrets.token_bytes(NONCE_BYTES),
        node=node,
    )
    if side == "agent":
        wire.send(msgspec.json.encode(hello))
        wire.bind("agent", hello.nonce)
        peer = _receive_hello(wire)
        _check_versions(hello, peer, side)
        wire.send(MET)
    else:
        peer = _receive_hello(wire)
        wire.send(msgspec.json.encode(hello))  # Also to another version, so that it can report this too.
        wire.bind("runner", hello.nonce)
        _check_versions(hello, peer, side)
        if wire.receive(HELLO_BYTES) != MET:
            raise Refused("the agent's first frame is not the one that proves a fresh connection")
    wire.peer = peer
    return wire


def _receive_hello(wire: SignedWire) -> Hello:
    body = wire.receive(HELLO_BYTES)
    try:
        hello = msgspec.json.decode(body, type=Hello)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"the first frame is not a hello: {error}") from None
    if len(hello.nonce) != NONCE_BYTES:
        raise Refused(f"the hello's nonce has {len(hello.nonce)} bytes; it must have {NONCE_BYTES}")
    wire.bind(_OTHER[wire.side], hello.nonce)
    return hello


def _check_versions(hello: Hello, peer: Hello, side: WireSide) -> None:
    if (hello.protocol, hello.program) != (peer.protocol, peer.program):
        raise Refused(
            f"this {side} has version {hello.program} (protocol {hello.protocol}), but the {_OTHER[side]} has version"
            f" {peer.program} (protocol {peer.protocol}); use one version on all nodes"
        )
