"""A channel passes messages, beats while it is silent, and ends with a reason when the other side does."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import msgspec
import pytest

from bench.engines.wire.channel import BEAT_S, SILENT_S, TICK_S, Channel, ChannelThreads, Heartbeat, Silence
from bench.engines.wire.frames import SignedWire, SocketStream, WireSide, meet
from bench.rank.messages import AgentFailed, EndTrial, FromAgent, ToAgent, TrialProgress

KEY = bytes(32)
WITHIN_S = 60.0


class FakeClock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def _ticks_until_given_up(silence: Silence, clock: FakeClock, *, every_s: float = TICK_S, most: int = 1000) -> float:
    begun_s = clock.now_s
    for _ in range(most):
        clock.now_s += every_s
        if silence.tick():
            return clock.now_s - begun_s
    return float("inf")


def test_who_is_silent_is_given_up_within_eight_seconds_of_the_last_word(clock: FakeClock) -> None:
    silence = Silence(clock=clock)
    silence.heard()
    clock.now_s += 2 * TICK_S - 0.01  # A tick came just before the word, and the next one is late.
    silence.tick()
    assert clock.now_s + _ticks_until_given_up(silence, clock) <= 8.0


def test_who_beats_is_never_given_up_even_if_three_beats_are_late(clock: FakeClock) -> None:
    silence = Silence(clock=clock)
    for _ in range(100):
        silence.heard()
        assert _ticks_until_given_up(silence, clock, most=int(3.2 * BEAT_S / TICK_S)) == float("inf")


def test_who_cannot_count_because_the_machine_is_busy_gives_nobody_up_early(clock: FakeClock) -> None:
    """Ten seconds without a tick are ten seconds in which nothing could be read, either."""
    silence = Silence(clock=clock)
    clock.now_s += 10.0
    assert not silence.tick()
    clock.now_s += 60.0
    assert not silence.tick()
    assert _ticks_until_given_up(silence, clock) <= SILENT_S


class Received:
    """What came, and why it ended."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.reasons: queue.SimpleQueue[str] = queue.SimpleQueue()

    def message(self) -> object:
        """The next one."""
        return self.messages.get(timeout=WITHIN_S)

    def reason(self) -> str:
        """Why it ended, when it has."""
        return self.reasons.get(timeout=WITHIN_S)


@contextmanager
def _channel(
    stream: SocketStream, side: WireSide, received: Received, *, beat_s: float = 0.02, silent_s: float = SILENT_S
) -> Iterator[Channel[ToAgent] | Channel[FromAgent]]:
    threads = ChannelThreads(beat_s=beat_s, tick_s=0.01)
    channel: Channel[object] = Channel(
        threads,
        stream,
        partial(meet, key=KEY, side=side),
        msgspec.json.Decoder((ToAgent if side == "agent" else FromAgent) | Heartbeat),
        on_message=received.messages.put,
        on_end=received.reasons.put,
        silence=lambda: Silence(limit_s=silent_s, tick_s=0.01),
    )
    channel.start()
    try:
        yield channel  # type: ignore[misc]
    finally:
        stream.abort()
        channel.hang_up(WITHIN_S)
        assert channel.join(WITHIN_S)
        threads.close(WITHIN_S)


@pytest.fixture
def streams() -> Iterator[tuple[SocketStream, SocketStream]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield SocketStream(ours), SocketStream(theirs)


def test_messages_pass_in_both_directions(streams: tuple[SocketStream, SocketStream]) -> None:
    agent, runner = Received(), Received()
    with _channel(streams[0], "agent", agent) as one, _channel(streams[1], "runner", runner) as other:
        assert one.send(TrialProgress(run="r", trial=0, steps=1))
        assert other.send(EndTrial(run="r", trial=0))
        assert runner.message() == TrialProgress(run="r", trial=0, steps=1)
        assert agent.message() == EndTrial(run="r", trial=0)


def test_what_is_queued_is_sent_before_a_side_hangs_up(streams: tuple[SocketStream, SocketStream]) -> None:
    runner = Received()
    with _channel(streams[0], "agent", Received()) as one, _channel(streams[1], "runner", runner):
        assert one.send(AgentFailed(text="the last word"))
        assert one.hang_up(WITHIN_S)
        assert runner.message() == AgentFailed(text="the last word")
        assert runner.reason() == "the agent hung up"
        assert not one.send(AgentFailed(text="too late"))


def test_a_side_that_neither_beats_nor_hangs_up_is_given_up(streams: tuple[SocketStream, SocketStream]) -> None:
    agent = Received()
    with (
        _channel(streams[0], "agent", agent, silent_s=0.2),
        _channel(streams[1], "runner", Received(), beat_s=3600.0),
    ):
        assert agent.reason() == "no message for 0.2 s"


class SlowReader(SocketStream):
    """A stream whose bytes are read only when that is allowed. polled: each look at whether some are unread."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self.may_read, self.polled = threading.Event(), threading.Semaphore(0)
        self.may_read.set()

    def read(self, most: int) -> bytes:
        self.may_read.wait(WITHIN_S)
        return super().read(most)

    def has_unread(self) -> bool:
        self.polled.release()
        return super().has_unread()


def test_bytes_that_wait_to_be_read_are_no_silence() -> None:
    runner, (ours, theirs) = Received(), socket.socketpair()
    slow = SlowReader(ours)
    with (
        ours,
        theirs,
        _channel(SocketStream(theirs), "agent", Received(), beat_s=3600.0) as agent,
        _channel(slow, "runner", runner, silent_s=0.5),
    ):
        agent.send(AgentFailed(text="first"))
        assert runner.message() == AgentFailed(text="first")
        slow.may_read.clear()
        for text in ("second", "third"):
            agent.send(AgentFailed(text=text))
        for _ in range(200):  # Looks of the watching thread, of which 50 of 0.01 s would be the end.
            assert slow.polled.acquire(timeout=WITHIN_S)
        assert runner.reasons.empty()
        slow.may_read.set()
        assert [runner.message(), runner.message()] == [AgentFailed(text="second"), AgentFailed(text="third")]


class CountedSilence(Silence):
    """ticked: each count."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s=limit_s, tick_s=0.01)
        self.ticked = threading.Semaphore(0)

    def tick(self) -> bool:
        self.ticked.release()
        return super().tick()


def test_slow_handling_of_what_came_is_no_silence(streams: tuple[SocketStream, SocketStream]) -> None:
    threads, silence = ChannelThreads(tick_s=0.01), CountedSilence(0.5)
    received, may_end = Received(), threading.Event()

    def handle(message: object) -> None:
        received.messages.put(message)
        may_end.wait(WITHIN_S)

    runner: Channel[FromAgent] = Channel(
        threads,
        streams[0],
        partial(meet, key=KEY, side="runner"),
        msgspec.json.Decoder(FromAgent | Heartbeat),
        on_message=handle,
        on_end=received.reasons.put,
        silence=lambda: silence,
    )
    with _channel(streams[1], "agent", Received()) as agent:
        runner.start()
        agent.send(AgentFailed(text="first"))
        assert received.message() == AgentFailed(text="first")
        for _ in range(200):
            assert silence.ticked.acquire(timeout=WITHIN_S)
        assert received.reasons.empty()
        may_end.set()
        runner.hang_up(WITHIN_S)
    assert runner.join(WITHIN_S)
    threads.close(WITHIN_S)


def _fill(channel: Channel[FromAgent]) -> None:
    while channel.send(EndTrial(run="r" * 100, trial=0)):
        pass  # Nobody reads it, until the channel ends.


def test_channels_share_threads_and_a_full_one_holds_no_other_up() -> None:
    threads, received = ChannelThreads(beat_s=0.02, tick_s=0.01), Received()
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(3)]
        for ends in pairs:
            for end in ends:
                stack.enter_context(end)
        runners: list[Channel[FromAgent]] = [
            Channel(
                threads,
                SocketStream(ours),
                partial(meet, key=KEY, side="runner"),
                msgspec.json.Decoder(FromAgent | Heartbeat),
                on_message=received.messages.put,
                on_end=received.reasons.put,
            )
            for ours, _ in pairs
        ]
        for runner in runners:
            runner.start()
        agents = [meet(SocketStream(theirs), KEY, "agent") for _, theirs in pairs]
        filling = threading.Thread(target=_fill, args=(runners[0],))
        filling.start()
        for number, agent in enumerate(agents):
            agent.send(msgspec.json.encode(AgentFailed(text=str(number))))
        assert {received.message() for _ in agents} == {AgentFailed(text=str(number)) for number in range(3)}
        assert runners[1].send(EndTrial(run="r", trial=1))
        while msgspec.json.decode(agents[1].receive(), type=ToAgent | Heartbeat) != EndTrial(run="r", trial=1):
            pass
        for runner in runners:
            runner.stream.abort()
            runner.hang_up(WITHIN_S)
            assert runner.join(WITHIN_S)
        filling.join(WITHIN_S)
        threads.close(WITHIN_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_message_that_breaks_its_handler_ends_its_channel_alone() -> None:
    threads, received, reasons = ChannelThreads(tick_s=0.01), Received(), Received()

    def handle(message: object) -> None:
        received.messages.put(message)
        if message == AgentFailed(text="0"):
            raise KeyError("a bug")

    with ExitStack() as stack:
        pairs = [[stack.enter_context(end) for end in socket.socketpair()] for _ in range(2)]
        runners: list[Channel[FromAgent]] = [
            Channel(
                threads,
                SocketStream(ours),
                partial(meet, key=KEY, side="runner"),
                msgspec.json.Decoder(FromAgent | Heartbeat),
                on_message=handle,
                on_end=reasons.reasons.put,
            )
            for ours, _ in pairs
        ]
        for runner in runners:
            runner.start()
        agents = [meet(SocketStream(theirs), KEY, "agent") for _, theirs in pairs]
        agents[0].send(msgspec.json.encode(AgentFailed(text="0")))
        assert reasons.reason() == "a message could not be handled: KeyError('a bug')"
        assert received.message() == AgentFailed(text="0")
        agents[1].send(msgspec.json.encode(AgentFailed(text="1")))
        assert received.message() == AgentFailed(text="1")
        for runner in runners:
            runner.stream.abort()
            runner.hang_up(WITHIN_S)
            assert runner.join(WITHIN_S)
        threads.close(WITHIN_S)


def test_who_does_not_read_keeps_nobody_from_ending(streams: tuple[SocketStream, SocketStream]) -> None:
    """The other side is stopped: what is sent to it fills the pipe, and then the queue."""
    agent = Received()
    with _channel(streams[0], "agent", agent, silent_s=0.5) as one:
        meet(streams[1], KEY, "runner")
        while one.send(AgentFailed(text="x" * 1_000_000)):
            pass
        assert agent.reason() == "no message for 0.5 s"


def _runner_sends(stream: SocketStream, body: bytes) -> SignedWire:
    wire = meet(stream, KEY, "runner")
    wire.send(body)
    return wire


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "a message is malformed: Input data was truncated"),
        (b'{"type":"call","code":"import os"}', "a message is malformed: Invalid value 'call'"),
        (b'{"type":"trial"}', "a message is malformed: Object missing required field"),
        (b'{"type":"end_trial","run":"../r","trial":0}', "a message is malformed: Expected `str` matching regex"),
        (b'{"type":"end_trial","run":"r","trial":0,"folder":"/etc"}', "contains unknown field `folder`"),
        (b"\x80\x04\x95.", "a message is malformed: "),  # The beginning of a pickle.
        (b"[" * 100_000, "a message is malformed: "),
        (b'{"type":"end_trial","run":"\xff","trial":0}', "a message is malformed: "),
    ],
)
def test_what_is_signed_but_malformed_is_refused(
    body: bytes, reason: str, streams: tuple[SocketStream, SocketStream]
) -> None:
    agent = Received()
    with _channel(streams[0], "agent", agent) as channel:
        _runner_sends(streams[1], body)
        assert reason in agent.reason()
        assert channel.is_refused
        assert agent.messages.empty()
