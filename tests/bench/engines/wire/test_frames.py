"""The wire takes what the other side signed for this connection, in order, and refuses all else with a reason."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.engines.wire import frames as wires
from bench.engines.wire.frames import (
    MOST_BYTES,
    Refused,
    SignedWire,
    SocketStream,
    StreamEnded,
    WireSide,
    key_line,
    meet,
    new_key,
    read_key,
    receive_key,
    write_key,
)

KEY = bytes(range(32))
SENT = tuple(b'{"type":"progress","run":"r","trial":0,"steps":%d}' % step for step in range(4))


class RecordedStream:
    """Bytes that come, and those that went. most_read: what was read in all."""

    def __init__(self, coming: bytes = b"") -> None:
        self.gone = bytearray()
        self.read_bytes = 0
        self._coming = coming

    reading_fd = writing_fd = -1

    def read(self, most: int) -> bytes:
        """The next of the bytes that come."""
        piece, self._coming = self._coming[:most], self._coming[most:]
        self.read_bytes += len(piece)
        return piece

    def has_unread(self) -> bool:
        """Whether bytes are left."""
        return bool(self._coming)

    def write(self, data: bytes) -> None:
        """Keep them."""
        self.gone += data

    def write_some(self, data: memoryview) -> int:
        """Keep them."""
        self.gone += data
        return len(data)

    def hang_up(self) -> None:
        """Nothing is open."""

    def abort(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""


def _wire(stream: RecordedStream, side: WireSide, key: bytes = KEY) -> SignedWire:
    """An end of a connection whose sides have met, with nonces that are known."""
    wire = SignedWire(stream, key, side)
    wire.bind("agent", b"a" * 32)
    wire.bind("runner", b"r" * 32)
    return wire


def _frames(*bodies: bytes, side: WireSide = "agent", key: bytes = KEY) -> list[bytes]:
    wire = _wire(stream := RecordedStream(), side, key)
    frames = []
    for body in bodies:
        before = len(stream.gone)
        wire.send(body)
        frames.append(bytes(stream.gone[before:]))
    return frames


def _received(data: bytes, side: WireSide = "runner") -> tuple[list[bytes], Exception]:
    """What was taken of these bytes, and what ended it."""
    wire, taken = _wire(RecordedStream(data), side), []
    while True:
        try:
            taken.append(wire.receive())
        except (Refused, StreamEnded) as error:
            return taken, error


FRAMES = _frames(*SENT)
STREAM = b"".join(FRAMES)


def test_what_was_signed_is_taken_in_order() -> None:
    taken, end = _received(STREAM)
    assert tuple(taken) == SENT
    assert isinstance(end, StreamEnded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """The bytes from `start` to `end` are replaced."""

    start: int
    end: int
    by: bytes

    def of(self, data: bytes) -> bytes:
        """The mutated bytes."""
        return data[: self.start] + self.by + data[self.end :]


MUTATIONS = st.tuples(
    st.integers(0, len(STREAM)), st.integers(0, len(STREAM)), st.one_of(st.just(b""), st.binary(max_size=200))
).map(lambda parts: Mutation(start=min(parts[:2]), end=max(parts[:2]), by=parts[2]))


@given(MUTATIONS)
@settings(max_examples=150, deadline=None)
def test_of_a_mutated_stream_nothing_is_taken_but_what_came_before(mutation: Mutation) -> None:
    mutated = mutation.of(STREAM)
    taken, _ = _received(mutated)
    assert tuple(taken) == SENT[: len(taken)]
    untouched = sum(1 for end in _ends() if mutated[:end] == STREAM[:end])
    assert len(taken) == untouched


def _ends() -> Iterator[int]:
    end = 0
    for frame in FRAMES:
        end += len(frame)
        yield end


@given(st.integers(0, len(STREAM) - 1), st.integers(0, 7))
@settings(max_examples=100, deadline=None)
def test_one_bit_is_enough_to_refuse_a_frame(place: int, bit: int) -> None:
    mutated = bytearray(STREAM)
    mutated[place] ^= 1 << bit
    taken, _ = _received(bytes(mutated))
    assert len(taken) == sum(1 for end in _ends() if end <= place)


@given(st.permutations(range(len(FRAMES))))
@settings(max_examples=24, deadline=None)
def test_frames_in_another_order_are_refused(order: list[int]) -> None:
    taken, end = _received(b"".join(FRAMES[number] for number in order))
    in_place = next((place for place, number in enumerate(order) if place != number), len(FRAMES))
    assert tuple(taken) == SENT[:in_place]
    if in_place < len(FRAMES):
        assert str(end) == f"frame {order[in_place]} comes out of order; frame {in_place} is due"


@given(st.binary(max_size=2000))
@settings(deadline=None)
def test_random_bytes_are_refused(data: bytes) -> None:
    taken, _ = _received(data)
    assert taken == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (FRAMES[0] + FRAMES[0], r"frame 0 was received before \(a replay\); frame 1 is due"),
        (b"".join(_frames(*SENT, side="runner")), "not signed with the key"),  # What we sent, sent back.
        (b"".join(_frames(*SENT, key=bytes(32))), "not signed with the key"),
        (
            b"GET /metrics HTTP/1.1\r\nHost: node0:9464\r\n\r\n" + bytes(100),
            "a frame of 1195725856 bytes is longer than",
        ),
    ],
)
def test_the_reason_of_a_refusal_is_said(data: bytes, reason: str) -> None:
    _, end = _received(data)
    assert isinstance(end, Refused)
    with pytest.raises(Refused, match=reason):
        raise end


@pytest.mark.parametrize("side", ["runner", "agent"])
def test_a_frame_that_is_too_long_is_refused_before_it_is_read(side: WireSide) -> None:
    sender: WireSide = "agent" if side == "runner" else "runner"
    header = (MOST_BYTES[sender] + 1).to_bytes(4, "big") + bytes(40)
    stream = RecordedStream(header + bytes(10_000))
    with pytest.raises(Refused, match=f"is longer than {MOST_BYTES[sender]}"):
        _wire(stream, side).receive()
    assert stream.read_bytes == len(header)


# Meeting.


@contextmanager
def _pair() -> Iterator[tuple[SocketStream, SocketStream]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield SocketStream(ours), SocketStream(theirs)


def _met(agent: Callable[[SocketStream], object], runner: Callable[[SocketStream], object]) -> list[object]:
    """What each side returned or raised."""

    def end(side: Callable[[SocketStream], object], stream: SocketStream) -> object:
        try:
            return side(stream)
        except (Refused, StreamEnded, OSError) as error:
            return error
        finally:
            stream.hang_up()

    with _pair() as streams, ThreadPoolExecutor(2) as pool:
        return list(pool.map(end, (agent, runner), streams))


def test_two_sides_with_one_key_meet_and_the_agent_says_its_node() -> None:
    agent, runner = _met(lambda it: meet(it, KEY, "agent", node=3), lambda it: meet(it, KEY, "runner"))
    assert isinstance(agent, SignedWire)
    assert isinstance(runner, SignedWire)
    assert runner.peer is not None
    assert runner.peer.node == 3


def test_sides_with_different_keys_refuse_each_other() -> None:
    _, runner = _met(lambda it: meet(it, new_key(), "agent"), lambda it: meet(it, KEY, "runner"))
    assert str(runner) == "a frame is not signed with the key for this connection"


def test_sides_of_different_versions_refuse_each_other_and_both_name_both() -> None:
    agent, runner = _met(
        lambda it: meet(it, KEY, "agent", program="0.1.0"), lambda it: meet(it, KEY, "runner", program="0.2.0")
    )
    assert str(agent).startswith(
        f"this agent has version 0.1.0 (protocol {wires.PROTOCOL}), but the runner has version 0.2.0"
    )
    assert str(runner).startswith(
        f"this runner has version 0.2.0 (protocol {wires.PROTOCOL}), but the agent has version 0.1.0"
    )


def test_an_agent_of_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hello = RecordedStream()
    with monkeypatch.context() as patched:
        patched.setattr(wires, "PROTOCOL", 7)
        with pytest.raises(StreamEnded):
            meet(hello, KEY, "agent", program="0.1.0")
    with pytest.raises(Refused, match=r"but the agent has version 0\.1\.0 \(protocol 7\)"):
        meet(RecordedStream(bytes(hello.gone)), KEY, "runner", program="0.1.0")


class KeepingStream(SocketStream):
    """Keeps what is written, as who listens on the network does."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self.gone = b""

    def write(self, data: bytes) -> None:
        """Write and keep."""
        self.gone += data
        super().write(data)


def test_a_recorded_agent_is_refused_by_the_next_runner() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        agent = KeepingStream(ours)
        thread = threading.Thread(target=meet, args=(agent, KEY, "agent"))
        thread.start()
        meet(SocketStream(theirs), KEY, "runner")
        thread.join()
    with pytest.raises(Refused, match="not signed with the key for this connection"):
        meet(RecordedStream(agent.gone), KEY, "runner")


def test_before_the_key_is_proved_a_frame_must_be_short() -> None:
    with pytest.raises(Refused, match="a frame of 5000 bytes is longer than 4096"):
        meet(RecordedStream((5000).to_bytes(4, "big") + bytes(6000)), KEY, "runner")


# Keys.


def test_a_key_is_read_from_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_key(path, KEY)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key(path) == KEY


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_file_that_others_can_read_is_refused_and_the_key_not_said(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_key(path, KEY)
    path.chmod(mode)
    with pytest.raises(Refused, match=f"mode {mode:o}") as caught:
        read_key(path)
    assert KEY.hex() not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"00" * 31 + b"\n", b"00" * 33, b"\xff" * 64, b"zz" * 32])
def test_what_is_no_key_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(Refused, match="holds no key, which is a line of 64 hexadecimal digits"):
        read_key(path)


def test_nothing_is_read_behind_the_line_of_a_key() -> None:
    stream = RecordedStream(key_line(KEY) + b"frame")
    assert receive_key(stream) == KEY
    assert stream.read(100) == b"frame"


def test_what_is_no_line_of_a_key_is_refused_before_more_of_it_is_read() -> None:
    stream = RecordedStream(b"a" * 1000)
    with pytest.raises(Refused, match="the first line of standard input holds no key"):
        receive_key(stream)
    assert stream.read_bytes == 128
    with pytest.raises(StreamEnded, match="the runner hung up before it sent a key"):
        receive_key(RecordedStream(key_line(KEY)[:-1]))
